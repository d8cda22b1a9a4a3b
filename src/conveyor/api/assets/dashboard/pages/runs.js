import { html, useState } from "../preact.js";
import { call, lines } from "../api.js";
import { at, count, duration, money, relative, words } from "../format.js";
import { Bar, Loaded, RunStatus, confirm, isLive, link, useLoad, usePages } from "../ui.js";

export function Runs({ job, shown, changed }) {
  const again = [job.latest_run?.run_id, job.latest_run?.status];
  const { page, buttons } = usePages(`/jobs/${job.job_id}/runs`, { limit: 25, again, labels: ["← Newer", "Older →"] });
  return html`
    <${Loaded} of=${page}>${({ runs: found }) => html`
      ${found.length === 0 && html`<p class="notice">This job has not run yet.</p>`}
      ${found.map((run) => html`<${Run} key=${run.run_id} ...${{ job, run, shown }} changed=${() => { changed(); page.reload(); }} />`)}`}<//>
    ${buttons}`;
}

function Run({ job, run, shown, changed }) {
  const took = (new Date(run.updated_at) - new Date(run.created_at)) / 1000;
  const address = `${link("jobs", job.job_id)}?run=${run.run_id}`;
  const remove = () => confirm({
    title: `Delete run ${run.run_sequence}?`,
    text: "Its rows and results are removed. Runs whose results a newer run shows cannot be deleted.",
    action: "Delete",
    danger: true,
    done: "Deleted",
    run: async () => {
      await call("DELETE", `/jobs/${job.job_id}/runs/${run.run_id}`);
      changed();
    },
  });
  return html`
    <article class="card run" aria-current=${run.run_id === shown ? "true" : null}>
      <div class="run-head">
        <h3><a href=${address}>Run ${run.run_sequence}</a> <${RunStatus} run=${run} /></h3>
        <span class="muted" title=${at(run.created_at)}>${words(run.trigger)}, ${relative(run.created_at)}${isLive(run) ? "" : `, took ${duration(took)}`} · ${money(run.stats.spend.cost)}</span>
        ${!isLive(run) && html`<button class="quiet danger-text" onClick=${remove}>Delete</button>`}
      </div>
      <${Bar} stats=${run.stats} />
      ${run.inherited_tasks > 0 && html`<p class="muted small">${count(run.inherited_tasks)} inherited from earlier runs, ${count(run.stats.completed - run.inherited_tasks)} scraped by this one.</p>`}
      ${run.ingest_error && html`<p class="notice bad"><bdi>${run.ingest_error}</bdi></p>`}
      ${run.ingest_errors > 0 && html`<${BadRows} job=${job} run=${run} />`}
    </article>`;
}

function BadRows({ job, run }) {
  const [open, setOpen] = useState(false);
  return html`
    <details onToggle=${(event) => setOpen(event.target.open)}>
      <summary>${count(run.ingest_errors)} rows of the list are not tasks</summary>
      ${open && html`<${BadRowList} path=${`/jobs/${job.job_id}/runs/${run.run_id}/ingest_errors`} />`}
    </details>`;
}

function BadRowList({ path }) {
  const rows = useLoad(() => lines(path), [path]);
  return html`<${Loaded} of=${rows}>${(found) => html`
    <ul class="bad-rows" tabindex="0">${found.slice(0, 200).map((row) => html`<li>Line ${row.line}: ${words(row.reason)} <code><bdi>${row.value || ""}</bdi></code></li>`)}</ul>
    ${found.length > 200 && html`<p class="muted">and ${count(found.length - 200)} more</p>`}`}<//>`;
}
