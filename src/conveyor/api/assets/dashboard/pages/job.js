// A job: its latest run or an earlier one, followed live, with what can be done about it.

import { html, useEffect, useRef, useState } from "../preact.js";
import { delay, follow, get, isTransient } from "../api.js";
import { at, count } from "../format.js";
import { Copy, Loaded, RunStatus, Status, isLive, isOpen, link, useLoad, useTitle } from "../ui.js";
import { Actions } from "./actions.js";
import { Failures } from "./failures.js";
import { Overview } from "./overview.js";
import { Rows } from "./rows.js";
import { Runs } from "./runs.js";
import { Settings } from "./settings.js";
import { noteSample } from "../plot.js";

const TABS = { "": "Overview", failures: "Failures", rows: "Rows", runs: "Runs", settings: "Settings" };

export function Job({ route }) {
  const [, id, tab = ""] = route.parts;
  // A rerun elsewhere or a schedule may begin a run at any time.
  const job = useLoad(() => get(`/jobs/${encodeURIComponent(id)}`), [id], { every: 15_000 });
  useTitle(job.data?.name || `Job ${id}`);
  return html`<${Loaded} of=${job}>${(data) => html`<${Found} job=${data} tab=${tab} query=${route.query} reload=${job.reload} />`}<//>`;
}

function Found({ job, tab, query, reload }) {
  const id = query.run || job.latest_run?.run_id;
  const { run, progress, error, refresh } = useRun(job, id);
  const changed = () => {
    reload();
    refresh();
  };
  // A run that ended changes what can be done.
  const wasLive = useRef(false);
  useEffect(() => {
    if (run && wasLive.current && !isLive(run)) reload();
    wasLive.current = isLive(run);
  }, [run?.status]);
  const suffix = query.run ? `?run=${query.run}` : "";
  const failed = run?.stats.failed;
  return html`
    <p class="crumbs"><a href="#/">Jobs</a></p>
    <div class="heading job">
      <div>
        <h1><bdi>${job.name || job.external_id || "Job"}</bdi> <${RunStatus} run=${run || job.latest_run} /> ${isOpen(job, run || job.latest_run) && html`<${Status} of="open" label="Open for tasks" />`}</h1>
        <p class="muted"><${Copy} text=${job.job_id} /> <span>submitted ${at(job.created_at)}</span></p>
      </div>
      <${Actions} job=${job} run=${run} isLatest=${id === job.latest_run?.run_id} changed=${changed} />
    </div>
    ${query.run && query.run !== job.latest_run?.run_id && html`
      <p class="notice">This is run ${run?.run_sequence ?? ""}, not the latest. <a href=${link("jobs", job.job_id)}>Show the latest run</a></p>`}
    <nav class="tabs" aria-label="Job">
      ${Object.entries(TABS).map(([name, label]) => html`
        <a href=${link("jobs", job.job_id, ...(name ? [name] : [])) + suffix} aria-current=${name === tab ? "page" : null}>
          ${label}${name === "failures" && failed > 0 && html` <b class="pill">${count(failed)}</b>`}
        </a>`)}
    </nav>
    ${error && html`<p class="notice bad" role="alert">${error.message}</p>`}
    ${tab === "" && html`<${Overview} job=${job} run=${run} progress=${progress} />`}
    ${tab === "settings" && html`<${Settings} job=${job} changed=${changed} />`}
    ${tab === "runs" && html`<${Runs} job=${job} shown=${id} changed=${changed} />`}
    ${run && tab === "failures" && html`<${Failures} key=${id} job=${job} run=${run} isLatest=${id === job.latest_run?.run_id} changed=${changed} />`}
    ${run && tab === "rows" && html`<${Rows} key=${id} job=${job} run=${run} query=${query} />`}
    ${!run && !error && ["failures", "rows"].includes(tab) && html`<p class="notice">${id ? "Loading…" : "This job has not run yet."}</p>`}`;
}

/** A run, kept current by its events while it is live and the page is visible. */
function useRun(job, id) {
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  const path = `/jobs/${job.job_id}/runs/${id}`;
  useEffect(() => {
    if (!id) return undefined;
    if (state.run?.run_id !== id) setState({});
    let stop = new AbortController();
    const begin = async () => {
      stop.abort();
      stop = new AbortController();
      const { signal } = stop;
      try {
        const run = await get(path, null, signal);
        setState({ run, progress: null });
        if (!isLive(run)) return;
        await follow(`${path}/events`, (progress, isLast) => {
          noteSample(progress);
          setState((before) => ({ run: merged(before.run || run, progress), progress: isLast ? null : progress }));
        }, signal);
        // What an event does not have, such as the time of the end.
        if (!signal.aborted) setState({ run: await get(path, null, signal), progress: null });
      } catch (error) {
        if (signal.aborted) return;
        setState((before) => ({ ...before, error }));
        if (!isTransient(error)) return;
        await delay(5_000, signal);
        if (!signal.aborted) begin();
      }
    };
    // A hidden page closes its stream: browsers allow few connections to an origin.
    const shown = () => (document.hidden ? stop.abort() : begin());
    shown();
    document.addEventListener("visibilitychange", shown);
    return () => {
      stop.abort();
      document.removeEventListener("visibilitychange", shown);
    };
  }, [path, turn]);
  return { ...state, refresh: () => setTurn((before) => before + 1) };
}

function merged(run, progress) {
  const { stats, status, pause_state, waiting, ingest_status } = progress;
  return { ...run, stats, status, pause_state, waiting, ingest_status };
}
