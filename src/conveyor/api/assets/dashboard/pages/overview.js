import { html } from "../preact.js";
import { at, count, duration, format, money, percent, plural, rate, relative, schedule, words } from "../format.js";
import { get } from "../api.js";
import { Bar, Figure, Status, isLive, link, useLoad, useNow } from "../ui.js";
import { Plot, generation, plotted, samples } from "../plot.js";

const MOST_OPEN = 10_000; // tasks of a kind that the API counts

export function Overview({ job, run, progress }) {
  const now = useNow();
  return html`
    ${run && html`<${Waiting} run=${run} progress=${progress} now=${now} /><${Funnel} job=${job} run=${run} progress=${progress} now=${now} />`}
    ${!run && html`<p class="notice">${job.next_scheduled_run ? `The first run begins ${relative(job.next_scheduled_run, now)}, at ${at(job.next_scheduled_run)}.` : "This job has not run yet."}</p>`}
    ${run && html`<${Throughput} key=${run.run_id} job=${job} run=${run} />`}
    ${run?.stats.failed > 0 && html`<${Reasons} job=${job} run=${run} />`}
    <${About} job=${job} run=${run} now=${now} />`;
}

/** Why the run makes no progress, or is not complete. */
function Waiting({ run, progress, now }) {
  const notices = [];
  if (isIdle(run, progress, now)) notices.push(["", "No task is in flight: no worker has a free place for the open tasks, they wait for their next attempt, or the gateway has put them off."]);
  if (isLive(run) && run.pause_state === "paused") notices.push(["warn", "Paused. Tasks in flight finish and count; no other task starts until you resume."]);
  if (run.waiting) {
    const next = run.waiting.next_attempt_at && ` The next attempt is ${relative(run.waiting.next_attempt_at, now)}.`;
    notices.push(["warn", `${words(run.waiting.reason)} since ${at(run.waiting.since)}. ${run.waiting.detail}${next || ""}`]);
  }
  if (run.ingest_status === "pending") notices.push(["", "The list is still being read, so the total grows."]);
  if (run.status === "pending") notices.push(["", "All tasks so far are done. The job is open: it waits for more tasks, or to be closed."]);
  if (run.failure_reason) notices.push(["bad", `${words(run.failure_reason)}. ${run.failure_detail || ""}`]);
  if (run.ingest_error) notices.push(["bad", run.ingest_error]);
  if (run.cut_short) notices.push(["warn", "This run has fewer rows than its list."]);
  return notices.map(([kind, text]) => html`<p class=${`notice ${kind}`}>${text}</p>`);
}

/** Whether a live run stands still, and the API gives no reason: it knows those of all tasks together. */
function isIdle(run, progress, now) {
  const { total, completed, in_flight: flying } = run.stats;
  const hasReason = run.waiting || run.pause_state === "paused" || run.ingest_status === "pending";
  const isYoung = now - new Date(run.created_at) < 10_000;
  return run.status === "running" && flying === 0 && completed < total && !progress?.rate && !hasReason && !isYoung;
}

/** How many tasks are in each state, with rate, time and cost. */
function Funnel({ job, run, progress, now }) {
  const { total, completed, successful, failed, spend } = run.stats;
  const live = isLive(run);
  const took = (new Date(live ? now : run.updated_at) - new Date(run.created_at)) / 1000;
  const own = completed - (run.inherited_tasks || 0);
  const suffix = `?run=${run.run_id}`;
  return html`
    <section class="card" aria-label="Progress">
      <ol class="funnel">
        <li><span>Tasks</span><b>${count(total)}</b></li>
        <${Open} job=${job} stats=${run.stats} live=${live} />
        <li class="good"><a href=${`${link("jobs", job.job_id, "rows")}${suffix}&status=successful`}>Successful</a><b>${count(successful)}</b><small>${percent(successful, total)}</small></li>
        <li class="bad"><a href=${link("jobs", job.job_id, "failures") + suffix}>Failed</a><b>${count(failed)}</b><small>${percent(failed, total)}</small></li>
      </ol>
      <${Bar} stats=${run.stats} label=${false} />
      <dl class="figures">
        ${live
          ? html`<${Figure} label="Rate" value=${rate(progress?.rate)} hint="over 10 s" /><${Figure} label="Time left" value=${progress?.eta_seconds == null ? "–" : `≈ ${duration(progress.eta_seconds)}`} />`
          : html`<${Figure} label="Average rate" value=${took > 0 ? rate(own / took) : "–"} />`}
        <${Figure} label=${live ? "Running for" : "Took"} value=${duration(took)} />
        <${Figure} label="Cost" value=${money(spend.cost)} hint=${plural(spend.credits, "credit")} />
        ${run.inherited_tasks > 0 && html`<${Figure} label="Inherited" value=${count(run.inherited_tasks)} hint="finished in earlier runs" />`}
      </dl>
    </section>`;
}

/** Tasks that are not final. Some engines count them together; others count each kind, up to a bound. */
function Open({ job, stats, live }) {
  const { total, completed, in_flight: flying, waiting_for_retry: waiting } = stats;
  const open = total - completed;
  if (!live || flying == null)
    return html`<li class=${live && open ? "live" : ""}><span>${live ? "Open" : "Not finished"}</span><b>${count(open)}</b>${live && html`<small>pending, in flight or waiting for a retry</small>`}</li>`;
  const bounded = (figure) => count(figure) + (figure >= MOST_OPEN ? "+" : "");
  return html`
    <li><span>Pending</span><b>${count(Math.max(open - flying - waiting, 0))}</b></li>
    <li class=${flying ? "live" : ""}><span>In flight</span><b>${bounded(flying)}</b>${flying > job.max_inflight && html`<small>incl. tasks claimed ahead</small>`}</li>
    <li class=${waiting ? "live" : ""}><span>Waiting for retry</span><b>${bounded(waiting)}</b></li>`;
}

function Reasons({ job, run }) {
  const reasons = Object.entries(run.stats.failure_reasons || {}).sort(([, a], [, b]) => b - a);
  return html`
    <section class="card reasons">
      <h2>Why tasks failed</h2>
      <ul>${reasons.map(([reason, number]) => html`
        <li><span>${words(reason)}</span><meter min="0" max=${run.stats.failed} value=${number} aria-label=${words(reason)}></meter><b>${count(number)}</b></li>`)}</ul>
      <a href=${`${link("jobs", job.job_id, "failures")}?run=${run.run_id}`}>Failures by host and code</a>
    </section>`;
}

function Throughput({ job, run }) {
  const live = isLive(run);
  const path = `/jobs/${job.job_id}/runs/${run.run_id}/timeline`;
  const load = async () => ({ live, timeline: await get(path), at: Date.now() / 1000 });
  const { data: loaded } = useLoad(load, [path, live, generation(run.run_id)]);
  const data = plotted(loaded, samples(run.run_id), run.updated_at);
  if (!data.times.length) return null;
  const { estimated, rows } = loaded?.timeline || {};
  return html`
    <section class="card">
      <h2>Throughput ${estimated && html`<small>estimated from ${count(rows)} rows</small>`}</h2>
      <${Plot} data=${data} version=${`${data.times.length} ${data.times.at(-1)}`} />
    </section>`;
}

function About({ job, run, now }) {
  const facts = [
    ["Schedule", job.schedule && html`${schedule(job.schedule)} ${job.schedule_state === "paused" && html`<${Status} of="paused" />`}`],
    ["Next run", job.schedule && (job.next_scheduled_run ? `${at(job.next_scheduled_run)} (${relative(job.next_scheduled_run, now)})` : "none")],
    ["Skipped runs", job.skipped_fires > 0 && `${count(job.skipped_fires)}, because the run before was still live`],
    ["Run", run && `${run.run_sequence} (${run.trigger}), begun ${at(run.created_at)}`],
    ["Bad rows of the list", run?.ingest_errors > 0 && html`<a href=${link("jobs", job.job_id, "runs")}>${count(run.ingest_errors)}</a>`],
    ["Format", format(job.format)],
    ["Tasks at a time", `${count(job.max_inflight)}${job.max_per_host ? `, ${count(job.max_per_host)} for each host` : ""}`],
    ["Retries", count(job.retries)],
    ["Results are kept", plural(job.result_ttl_days, "day")],
    ["External id", job.external_id],
    ["Webhook", job.webhook && html`<bdi>${job.webhook.url}</bdi>`],
  ].filter(([, value]) => value);
  return html`
    <section class="card about">
      <h2>About this job</h2>
      <dl class="facts">
        ${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
        ${Object.entries(job.zenrows_params || {}).map(([name, value]) => html`<div><dt><code>${name}</code></dt><dd><bdi>${value}</bdi></dd></div>`)}
        ${Object.entries(job.metadata || {}).map(([name, value]) => html`<div><dt><bdi>${name}</bdi></dt><dd><bdi>${value}</bdi></dd></div>`)}
      </dl>
    </section>`;
}
