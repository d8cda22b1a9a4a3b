// What can be done about a job and its latest run, each after a confirmation.

import { html, useEffect, useState } from "../preact.js";
import { call, delay, get, newOnce } from "../api.js";
import { at, count, plural } from "../format.js";
import { Form, Problem, confirm, isLive, openDialog } from "../ui.js";
import { Params, paramsOf } from "./params.js";

export function Actions({ job, run, isLatest, changed }) {
  const path = `/jobs/${job.job_id}`;
  const act = (title, text, action, name, done, danger) => () =>
    confirm({
      title, text, action, danger, done,
      run: async () => {
        await call("POST", `${path}/${name}`);
        changed();
      },
    });
  const live = isLatest && isLive(run);
  const ended = isLatest && run && !live;
  return html`
    <div class="actions">
      ${live && run.pause_state !== "paused" && html`<button onClick=${act("Pause this run?", "Tasks in flight finish and count. No other task starts until you resume.", "Pause", "pause", "Paused")}>Pause</button>`}
      ${live && run.pause_state === "paused" && html`<button class="primary" onClick=${act("Resume this run?", "Tasks start again.", "Resume", "resume", "Resumed")}>Resume</button>`}
      ${job.status === "open" && html`<button onClick=${act("Close this job?", "No tasks can be added afterwards. The run completes when its tasks are done.", "Close job", "close", "Closed")}>Close</button>`}
      ${live && html`<button onClick=${act("Stop this run?", "No more tasks start. A stopped run cannot be resumed, but its unfinished tasks can be rerun.", "Stop", "stop", "Stopped", true)}>Stop</button>`}
      ${(ended || !job.latest_run) && html`<button class="primary" onClick=${() => askRerun(job, run, changed)}>${run ? "Rerun" : "Run now"}</button>`}
      ${run && html`<button onClick=${() => openDialog({ title: "Export", body: html`<${Export} job=${job} run=${run} />` })}>Export</button>`}
      <button class="quiet danger-text" onClick=${() => askDelete(job)}>Delete</button>
    </div>`;
}

function askDelete(job) {
  confirm({
    title: "Delete this job?",
    text: "The job, its runs and all its results are removed. This cannot be undone.",
    action: "Delete",
    danger: true,
    done: "Deleted",
    run: async () => {
      await call("DELETE", `/jobs/${job.job_id}`);
      location.hash = "#/";
    },
  });
}

/** Ask which tasks to scrape again; a `group` is a group of failures. */
export function askRerun(job, run, changed, group) {
  openDialog({ title: group ? "Rerun this group" : run ? "Rerun" : "Run now", body: html`<${Rerun} job=${job} run=${run} changed=${changed} group=${group} />` });
}

const conditionsOf = {
  all: () => ({}),
  failed: () => ({ status: ["failed"] }),
  unfinished: () => ({ status: ["pending"] }),
  group: ({ host, reason, code }) => ({
    status: ["failed"],
    reason: [reason],
    ...(host ? { host: [host] } : {}),
    ...(host && code ? { code: [code] } : {}),
  }),
};

function Rerun({ job, run, changed, group }) {
  const stats = run?.stats;
  const open = stats ? stats.total - stats.completed : 0;
  const [which, setWhich] = useState(group ? "group" : stats?.failed ? "failed" : "all");
  const [params, setParams] = useState([]);
  const [once] = useState(newOnce);
  const choices = [
    ["failed", `Failed tasks (${count(stats?.failed || 0)})`, stats?.failed > 0],
    ["unfinished", `Unfinished tasks (${count(open)})`, open > 0],
    ["all", stats ? `All tasks (${count(stats.total)})` : "All tasks", true],
  ];
  const submit = async () => {
    const given = paramsOf(params, null);
    const body = { ...conditionsOf[which](group), ...(given ? { zenrows_params: given } : {}) };
    const answer = await call("POST", `/jobs/${job.job_id}/rerun`, { body, once });
    location.hash = `#/jobs/${job.job_id}`;
    changed();
    return answer;
  };
  return html`
    <${Form} action=${run ? "Rerun" : "Run now"} run=${submit} done=${(answer) => `Run ${answer.latest_run.run_sequence} has begun`}>
      ${group && html`<p>${plural(group.count, "failed task")} ${group.host ? html`of <b><bdi>${group.host}</bdi></b>` : "with this reason, and all others that have it,"} will be scraped again. All other results are inherited.</p>`}
      ${!group && run && html`
        <fieldset><legend>Scrape again</legend>
          ${choices.filter(([, , shown]) => shown).map(([name, label]) => html`
            <label class="choice"><input type="radio" name="which" checked=${which === name} onChange=${() => setWhich(name)} /> ${label}</label>`)}
        </fieldset>
        <p class="muted small">Results of other tasks are inherited by the new run.</p>`}
      ${!run && html`<p>The job runs now; its schedule does not change.</p>`}
      <${Params} value=${params} change=${setParams} label="Changed parameters" removable />
    <//>`;
}

const exports = new Map(); // by run: the export that was started on this page; the API does not list them

/** An export of a run: started by a button, followed to its file, and found again until it expires. */
function Export({ job, run }) {
  const path = `/jobs/${job.job_id}/runs/${run.run_id}/exports`;
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const id = exports.get(run.run_id);
    if (!id) return undefined;
    const stop = new AbortController();
    (async () => {
      for (let wait = 200; !stop.signal.aborted; wait = Math.min(wait * 1.5, 3000)) {
        const found = await get(`${path}/${id}`, null, stop.signal);
        setState({ found });
        if (!["pending", "running"].includes(found.status)) return;
        await delay(wait, stop.signal);
      }
    })().catch((error) => {
      if (stop.signal.aborted) return;
      if (error.status === 404) exports.delete(run.run_id);
      setState(error.status === 404 ? {} : { error });
    });
    return () => stop.abort();
  }, [turn]);
  const start = async () => {
    const { export_id: id } = await call("POST", path);
    exports.set(run.run_id, id);
    setState({});
    setTurn(turn + 1);
  };
  const { found, error = found?.error && { message: found.error } } = state;
  const isMade = Boolean(found?.download_url);
  if (exports.has(run.run_id) && !isMade && !error) return html`<p class="loading" role="status">Packing ${plural(run.stats.completed, "result")} into one file…</p>`;
  return html`
    <${Problem} error=${error} />
    ${isMade && html`
      <p>The export of ${at(found.created_at)} is ready.</p>
      <p><a class="button primary" href=${found.download_url} download=${`${run.run_id}.zip`}>Download</a></p>
      <p class="muted small">The link works for a day and needs no key: anyone who has it can download the file.</p>`}
    <${Form} action=${isMade ? "Export again" : "Export"} run=${start} stay>
      <p>The results of run ${run.run_sequence}${isLive(run) ? " so far" : ""} are packed into one zip file, with a manifest of every task.</p>
    <//>`;
}
