// For keys with the scope `operator`: what all callers run, what failed for good, and what is alive.

import { html, useState } from "../preact.js";
import { call, get } from "../api.js";
import { at, bytes, count, money, plural, relative, words } from "../format.js";
import { Bar, Copy, Empty, Loaded, RunStatus, Status, confirm, isLive, link, useLoad, useNow, usePages, useTitle } from "../ui.js";

const TABS = { "": "Live runs", callers: "Callers", "dead-letters": "Dead letters", system: "System" };
const EVERY = 5_000; // milliseconds between two loads

export function Operators({ route }) {
  const [, tab = "", caller] = route.parts;
  useTitle("Operators");
  return html`
    <div class="heading"><h1>Operators</h1></div>
    <nav class="tabs" aria-label="Operators">
      ${Object.entries(TABS).map(([name, label]) => html`
        <a href=${link("operators", ...(name ? [name] : []))} aria-current=${name === tab ? "page" : null}>${label}</a>`)}
    </nav>
    ${tab === "" && html`<${LiveRuns} key=${route.query.caller} caller=${route.query.caller} />`}
    ${tab === "callers" && !caller && html`<${Callers} />`}
    ${tab === "callers" && caller && html`<${JobsOf} key=${caller} caller=${caller} />`}
    ${tab === "dead-letters" && html`<${DeadLetters} />`}
    ${tab === "system" && html`<${System} />`}
    ${!(tab in TABS) && html`<p class="notice">There is no such page. <a href=${link("operators")}>Live runs</a></p>`}`;
}

function LiveRuns({ caller }) {
  const now = useNow(10_000);
  const { page, buttons } = usePages("/operator/runs", { query: { caller }, every: EVERY });
  return html`
    ${caller && html`<p class="notice">Only those of <b><bdi>${caller}</bdi></b>. <a href=${link("operators")}>Show all</a></p>`}
    <${Loaded} of=${page}>${({ runs }) => html`
      ${runs.length === 0 && html`<${Empty} title="Nothing is running" />`}
      ${runs.length > 0 && html`
        <div class="scroll">
          <table class="runs stacks">
            <thead><tr><th>Job</th><th>Status</th><th>Progress</th><th class="right">Cost</th><th class="right">Started</th><th><span class="unseen">Actions</span></th></tr></thead>
            <tbody>${runs.map((one) => html`<${LiveRun} key=${one.run.run_id} ...${one} now=${now} changed=${page.reload} />`)}</tbody>
          </table>
        </div>`}`}<//>
    ${buttons}`;
}

function LiveRun({ caller, job_name: name, run, now, changed }) {
  return html`
    <tr>
      <td class="name">
        <b><bdi>${name || run.job_id}</bdi></b>
        <small>of <a href=${link("operators", "callers", caller)}><bdi>${caller}</bdi></a></small>
        <small><code>${run.job_id}</code></small>
      </td>
      <td><${RunStatus} run=${run} />${run.waiting && html`<small>${words(run.waiting.reason)} since ${relative(run.waiting.since, now)}</small>`}</td>
      <td class="progress"><${Bar} stats=${run.stats} /></td>
      <td class="right" data-label="Cost" title=${plural(run.stats.spend.credits, "credit")}>${money(run.stats.spend.cost)}</td>
      <td class="right" data-label="Started" title=${at(run.created_at)}>${relative(run.created_at, now)}</td>
      <td class="run-actions"><${RunActions} ...${{ caller, name, run, changed }} /></td>
    </tr>`;
}

/** Pause, resume and stop of a live run of any caller, each after a confirmation. */
function RunActions({ caller, name, run, changed }) {
  const what = name || run.job_id;
  const ask = (label, path, text, done, danger) => () => confirm({
    title: `${label} “${what}” of ${caller}?`, text, action: label, danger, done,
    run: async () => {
      await call("POST", `/operator/jobs/${run.job_id}/${path}`);
      changed();
    },
  });
  const paused = run.pause_state === "paused";
  return html`
    <div class="actions">
      ${paused
        ? html`<button aria-label=${`Resume ${what}`} onClick=${ask("Resume", "resume", "Tasks start again.", "Resumed")}>Resume</button>`
        : html`<button aria-label=${`Pause ${what}`} onClick=${ask("Pause", "pause", "Tasks in flight finish and count. The caller can resume the run.", "Paused")}>Pause</button>`}
      <button class="danger-text" aria-label=${`Stop ${what}`} onClick=${ask("Stop", "stop", "No more tasks start. A stopped run cannot be resumed; the caller can rerun its unfinished tasks.", "Stopped", true)}>Stop</button>
    </div>`;
}

function Callers() {
  const now = useNow(10_000);
  const { page, buttons } = usePages("/operator/callers", { every: 4 * EVERY }); // it costs the service more than others
  return html`
    <p class="muted small">Callers that have an API key or a live run. Open tasks and cost are those of live runs.</p>
    <${Loaded} of=${page}>${({ callers }) => html`
      ${callers.length === 0 && html`<${Empty} title="No callers" />`}
      ${callers.length > 0 && html`
        <div class="scroll">
          <table class="callers stacks">
            <thead><tr><th>Caller</th><th class="right">Live runs</th><th class="right">Open tasks</th><th class="right">Cost</th><th class="right">Keys</th><th class="right">Last used</th></tr></thead>
            <tbody>${callers.map((one) => html`
              <tr key=${one.caller}>
                <td class="name"><a href=${link("operators", "callers", one.caller)}><bdi>${one.caller}</bdi></a></td>
                <td class="right" data-label="Live runs">${one.live_runs ? html`<a href=${`${link("operators")}?caller=${encodeURIComponent(one.caller)}`} aria-label=${`${plural(one.live_runs, "live run")} of ${one.caller}`}>${count(one.live_runs)}</a>` : "0"}</td>
                <td class="right" data-label="Open tasks">${count(one.open_tasks)}</td>
                <td class="right" data-label="Cost">${money(one.spend.cost)}</td>
                <td class="right" data-label="Keys">${count(one.active_keys)}</td>
                <td class="right" data-label="Last used" title=${at(one.last_used_at)}>${relative(one.last_used_at, now)}</td>
              </tr>`)}</tbody>
          </table>
        </div>`}`}<//>
    ${buttons}`;
}

function JobsOf({ caller }) {
  const now = useNow(10_000);
  const { page, buttons } = usePages(`/operator/callers/${encodeURIComponent(caller)}/jobs`, { every: EVERY });
  return html`
    <p class="crumbs"><a href=${link("operators", "callers")}>Callers</a></p>
    <h2>Jobs of <bdi>${caller}</bdi></h2>
    <${Loaded} of=${page}>${({ jobs }) => html`
      ${jobs.length === 0 && html`<${Empty} title="No jobs" />`}
      ${jobs.length > 0 && html`
        <div class="scroll">
          <table class="jobs stacks">
            <thead><tr><th>Job</th><th>Status</th><th>Progress</th><th class="right">Cost</th><th class="right">Created</th><th><span class="unseen">Actions</span></th></tr></thead>
            <tbody>${jobs.map(({ latest_run: run, ...job }) => html`
              <tr key=${job.job_id}>
                <td class="name"><b><bdi>${job.name || job.external_id || job.job_id}</bdi></b><small><code>${job.job_id}</code></small></td>
                <td><${RunStatus} run=${run} /></td>
                <td class="progress">${run ? html`<${Bar} stats=${run.stats} />` : html`<small>No run yet</small>`}</td>
                <td class="right" data-label="Cost">${run ? money(run.stats.spend.cost) : "–"}</td>
                <td class="right" data-label="Created" title=${at(job.created_at)}>${relative(job.created_at, now)}</td>
                <td class="run-actions">${isLive(run) && html`<${RunActions} ...${{ caller, name: job.name, run }} changed=${page.reload} />`}</td>
              </tr>`)}</tbody>
          </table>
        </div>`}`}<//>
    ${buttons}`;
}

function DeadLetters() {
  const now = useNow(10_000);
  const { page, buttons } = usePages("/operator/dead_letters", { every: EVERY });
  const redrive = (one) => () => confirm({
    title: "Redrive this message?",
    text: "It goes back on the control queue and is handled at once. Remove the cause of its failure first.",
    action: "Redrive",
    done: "Redriven",
    run: async () => {
      await call("POST", `/operator/dead_letters/${one.message_id}/redrive`);
      page.reload();
    },
  });
  return html`
    <p class="muted small">Background work that failed for good: lists that were not read, deletions and exports that were not finished.</p>
    <${Loaded} of=${page}>${({ dead_letters: found }) => html`
      ${found.length === 0 && html`<${Empty} title="No dead letters"><p>All background work is done or under way.</p><//>`}
      ${found.map((one) => html`
        <article class="card letter" key=${one.message_id}>
          <div class="card-head">
            <h3>${words(one.kind)} <small class="muted" title=${at(one.dead_lettered_at)}>${relative(one.dead_lettered_at, now)}</small></h3>
            <button aria-label=${`Redrive ${one.message_id}`} onClick=${redrive(one)}>Redrive</button>
          </div>
          <p class="notice bad"><bdi>${one.reason}</bdi></p>
          <dl class="facts">
            <div><dt>Message</dt><dd><${Copy} text=${one.message_id} /></dd></div>
            ${Object.entries(one.payload).map(([name, value]) => html`<div><dt>${words(name)}</dt><dd><code><bdi>${value}</bdi></code></dd></div>`)}
          </dl>
        </article>`)}`}<//>
    ${buttons}`;
}

function System() {
  const now = useNow(10_000);
  const engines = useLoad(() => get("/operator/engines"), [], { every: 2 * EVERY });
  const processes = useLoad(() => get("/operator/processes"), [], { every: EVERY });
  return html`
    <h2>Engines</h2>
    <p class="muted small">As the process that answers finds them, by one small read each.</p>
    <${Loaded} of=${engines}>${({ engines: found, disk_free: free }) => html`
      <div class="scroll">
        <table class="engines stacks">
          <thead><tr><th>Holds</th><th>State</th><th>Engine</th><th class="right">Took</th></tr></thead>
          <tbody>${found.map((one) => html`
            <tr key=${one.holds}>
              <td class="name"><b>${words(one.holds)}</b>${one.error && html`<small><bdi>${one.error}</bdi></small>`}</td>
              <td><${Status} of=${one.available ? "active" : "failed"} label=${one.available ? "Answers" : "Does not answer"} /></td>
              <td><code>${one.engine}</code></td>
              <td class="right" data-label="Took">${count(one.elapsed_ms)} ms</td>
            </tr>`)}</tbody>
        </table>
      </div>
      ${free != null && html`<p class="muted">The disk of the data folder has ${bytes(free)} free.</p>`}`}<//>
    <h2 class="apart">Processes</h2>
    <${Loaded} of=${processes}>${({ processes: found }) => html`
      <div class="scroll">
        <table class="processes stacks">
          <thead><tr><th>Process</th><th>Role</th><th>Host</th><th>Version</th><th class="right">Started</th></tr></thead>
          <tbody>${found.map((one) => html`
            <tr key=${one.process_id}>
              <td class="name"><code>${one.process_id}</code></td>
              <td>${words(one.role)}</td>
              <td><bdi>${one.host}</bdi></td>
              <td>${one.version}</td>
              <td class="right" data-label="Started" title=${at(one.started_at)}>${relative(one.started_at, now)}</td>
            </tr>`)}</tbody>
        </table>
      </div>`}<//>`;
}
