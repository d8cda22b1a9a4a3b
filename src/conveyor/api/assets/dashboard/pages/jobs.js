// The list of jobs. The API lists jobs by pages, newest first, and searches them by name; filters look
// through loaded pages and load older ones until enough match.

import { html, useEffect, useRef, useState } from "../preact.js";
import { get } from "../api.js";
import { at, format, money, plural, rate, relative, schedule, short } from "../format.js";
import { Bar, Empty, Problem, RunStatus, Status, isLive, isOpen, link, right, useNow, useTitle } from "../ui.js";

const PAGE = 50;
const ENOUGH = 20; // matches to look for before the reader asks for more
const MOST_PAGES = 20; // of 100 jobs, which a filter looks through in one go
const LONGEST_PAUSE = 30_000; // between two loads of the list
const MOST_SEARCHES = 2; // for one pause in typing: the service looks at up to 1,000 jobs in each
const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;

const FILTERS = {
  all: { label: "All", query: {} },
  live: { label: "Live", query: {}, matches: (job) => isLive(job.latest_run) },
  failures: { label: "With failures", query: {}, matches: (job) => job.latest_run?.stats.failed > 0 },
  scheduled: { label: "Scheduled", query: { type: "scheduled" } },
  open: { label: "Open", query: { status: "open" } },
};

/** Load the pages from `cursor` on until enough jobs match. */
async function load(filter, text, cursor, signal) {
  const { query, matches = () => true } = FILTERS[filter];
  const selective = text || FILTERS[filter].matches;
  const found = [];
  let reads = 0;
  while (reads < (text ? MOST_SEARCHES : MOST_PAGES)) {
    const limit = selective ? 100 : PAGE;
    const answer = await get("/jobs", { ...query, ...(text && { name: text }), limit, cursor }, signal);
    reads++;
    found.push(...answer.jobs.filter(matches));
    cursor = answer.next_cursor;
    if (!cursor || !selective || found.length >= ENOUGH) break;
  }
  return { jobs: found, cursor, reads };
}

/** The rate of each live run: tasks done between two loads of the list. */
function useRates(jobs) {
  const { current: seen } = useRef({ jobs: null, runs: new Map() });
  if (seen.jobs === jobs) return seen.runs;
  seen.jobs = jobs;
  const now = Date.now();
  for (const { latest_run: run } of jobs) {
    if (!isLive(run)) continue;
    const done = run.stats.completed;
    const before = seen.runs.get(run.run_id);
    if (!before) seen.runs.set(run.run_id, { now, done, rate: null });
    else if (now - before.now > 1000) {
      seen.runs.set(run.run_id, { now, done, rate: (1000 * (done - before.done)) / (now - before.now) });
    }
  }
  return seen.runs;
}

export function Jobs({ query }) {
  useTitle("Jobs");
  const filter = FILTERS[query.show] ? query.show : "all";
  const [typed, setTyped] = useState("");
  const [text, setText] = useState("");
  const [list, setList] = useState({ jobs: null, cursor: null, error: null, busy: false });
  useEffect(() => {
    const timer = setTimeout(() => setText(typed.trim()), 250);
    return () => clearTimeout(timer);
  }, [typed]);

  const shown = useRef(null); // stops what loads jobs for the filter and the text
  useEffect(() => {
    const stop = (shown.current = new AbortController());
    let timer;
    let pause = 5_000;
    let isDue = false; // but the page is hidden
    const first = async () => {
      try {
        const { jobs, cursor, reads } = await load(filter, text, null, stop.signal);
        // A filter that read many pages waits that many times as long.
        pause = Math.min(reads * (jobs.some((job) => isLive(job.latest_run)) ? 5_000 : 20_000), LONGEST_PAUSE);
        setList((before) => {
          // Older pages that the reader has loaded stay below the first one.
          const oldest = jobs.at(-1)?.job_id;
          const rest = before.more ? before.jobs.filter((job) => job.job_id < oldest) : [];
          return { ...before, jobs: [...jobs, ...rest], cursor: before.more ? before.cursor : cursor, error: null };
        });
      } catch (error) {
        if (!stop.signal.aborted) setList((before) => ({ ...before, error }));
      }
      // A search looks at many jobs, so it is not repeated by itself.
      if (!text && !stop.signal.aborted) timer = setTimeout(again, pause);
    };
    const again = () => {
      isDue = document.hidden;
      if (!isDue) first();
    };
    document.addEventListener("visibilitychange", () => isDue && again(), { signal: stop.signal });
    first();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [filter, text]);
  useEffect(() => setList({ jobs: null, cursor: null, error: null, more: false }), [filter, text]);

  const more = async () => {
    const { signal } = shown.current;
    const change = (part) => !signal.aborted && setList((before) => ({ ...before, busy: false, ...part(before) }));
    setList((before) => ({ ...before, busy: true, more: true }));
    try {
      const { jobs, cursor } = await load(filter, text, list.cursor, signal);
      change((before) => ({ jobs: [...before.jobs, ...jobs], cursor }));
    } catch (error) {
      change(() => ({ error }));
    }
  };
  const id = typed.trim().toUpperCase();
  return html`
    <div class="heading">
      <h1>Jobs</h1>
      <input type="search" aria-label="Search jobs" placeholder="Search by name or id" maxlength="100" value=${typed}
        onInput=${(event) => setTyped(event.target.value)} />
    </div>
    <nav class="tabs" aria-label="Filter">
      ${Object.entries(FILTERS).map(([name, { label }]) => html`
        <a href=${name === "all" ? "#/" : `#/?show=${name}`} aria-current=${name === filter ? "true" : null}>${label}</a>`)}
    </nav>
    <${Problem} error=${list.error} />
    ${ULID.test(id) && html`<p class="notice">This looks like an id. <a href=${link("jobs", id)}>Open job ${id}</a></p>`}
    ${!list.jobs && !list.error && html`<p class="loading">Loading…</p>`}
    ${list.jobs?.length === 0 && html`<${Nothing} filtered=${text || filter !== "all"} />`}
    ${list.jobs?.length > 0 && html`<${Table} jobs=${list.jobs} />`}
    ${list.jobs && list.cursor && html`
      <p class="more"><button onClick=${more} disabled=${list.busy}>${list.busy ? "Loading…" : text ? "Search older jobs" : "Show older jobs"}</button></p>`}`;
}

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} title="No job matches"><p><a href="#/">Show all jobs</a></p><//>`;
  return html`
    <${Empty} title="No jobs yet">
      <p>Paste some URLs or drop a list, and watch the pages come in.</p>
      <a class="button primary" href=${link("submit")}>New job</a>
    <//>`;
}

function Table({ jobs }) {
  const now = useNow(10_000);
  const rates = useRates(jobs);
  return html`
    <div class="scroll">
      <table class="jobs stacks">
        <thead><tr><th>Job</th><th>Status</th><th>Progress</th><th class="right">Rate</th><th class="right">Cost</th><th class="right">Created</th></tr></thead>
        <tbody>${jobs.map((job) => html`<${Row} key=${job.job_id} job=${job} now=${now} speed=${rates.get(job.latest_run?.run_id)?.rate} />`)}</tbody>
      </table>
    </div>`;
}

function Row({ job, now, speed }) {
  const run = job.latest_run;
  return html`
    <tr>
      <td class="name">
        <a href=${link("jobs", job.job_id)}><bdi>${job.name || job.external_id || job.job_id}</bdi></a>
        <small>${sourceOf(job, now)}</small>
      </td>
      <td><${RunStatus} run=${run} />${isOpen(job, run) && html` <${Status} of="open" label="Open" />`}</td>
      <td class="progress">${run ? html`<${Bar} stats=${run.stats} />` : html`<small>No run yet</small>`}</td>
      <td class=${right(isLive(run) ? speed : null)} data-label="Rate">${isLive(run) ? rate(speed) : "–"}</td>
      <td class="right" data-label="Cost" title=${run && plural(run.stats.spend.credits, "credit")}>${run ? money(run.stats.spend.cost) : "–"}</td>
      <td class="right" data-label="Created" title=${at(job.created_at)}>${relative(job.created_at, now)}</td>
    </tr>`;
}

/** What began the latest run: a schedule, a rerun, or a submission. The API does not say whether the tasks came from a file. */
function sourceOf(job, now) {
  if (job.type === "scheduled") {
    const next = job.schedule_state === "paused" ? "paused" : job.next_scheduled_run ? `next ${relative(job.next_scheduled_run, now)}` : "no further run";
    const last = job.latest_run?.trigger === "manual" ? " · last run by hand" : "";
    return `${schedule(job.schedule)} · ${next}${last}`;
  }
  const run = job.latest_run;
  const of = run?.run_sequence > 1 ? `run ${run.run_sequence}, rerun` : job.status === "open" ? "submitted in parts" : "submitted";
  return `${of} · ${format(job.format)} · up to ${short(job.max_inflight)} at a time`;
}
