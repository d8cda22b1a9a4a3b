import { html, useRef } from "../preact.js";
import { get } from "../api.js";
import { count, href, percent, plural, titleAndDetail, words } from "../format.js";
import { Empty, Loaded, isLive, openDialog, useLoad } from "../ui.js";
import { askRerun } from "./actions.js";
import { rowsAddress } from "./rows.js";
import { Task } from "./task.js";

export function Failures({ job, run, isLatest, changed }) {
  const path = `/jobs/${job.job_id}/runs/${run.run_id}`;
  const every = isLive(run) ? 5_000 : 0;
  const isCurrent = useRef(() => false);
  const load = () => get(`${path}/failures`, { limit: 200 });
  const failures = useLoad(load, [path, run.status], { every, unless: () => isCurrent.current() });
  // The events of the run tell how many tasks have failed: without more of them, the groups are the same.
  isCurrent.current = () => !failures.error && failures.data?.failed === run.stats.failed;
  return html`
    <${Loaded} of=${failures}>${({ failed, groups, groups_total: total }) => failed === 0
      ? html`<${Empty} title="No failures"><p>${isLive(run) ? "No task of this run has failed so far." : "No task of this run failed."}</p><//>`
      : html`
        <p class="muted">${plural(failed, "failed task")} in ${plural(total, "group")} by host, reason and code${groups.length < total ? `; the ${count(groups.length)} largest are shown` : ""}.</p>
        <div class="groups">
          ${groups.map((group) => html`<${Group} key=${`${group.host} ${group.reason} ${group.code}`} ...${{ job, run, group, failed, changed, isLatest }} canRerun=${isLatest && !isLive(run)} />`)}
        </div>
        ${isLatest && isLive(run) && html`<p class="muted small">Groups can be rerun once the run has ended.</p>`}`}
    <//>`;
}

function Group({ job, run, group, failed, changed, isLatest, canRerun }) {
  const example = { task_id: group.example_task_id, url: group.example_url, status: "failed", error: group };
  const show = () => openDialog({ title: "Failed task", wide: true, body: html`<${Task} job=${job} run=${run} task=${example} />` });
  // A group without a host has what is left of its reason: its rows cannot be told from the others.
  const { host, reason, code } = group;
  const rows = rowsAddress(job, { ...(isLatest ? {} : { run: run.run_id }), status: "failed", reason, ...(host ? { host, code } : {}) });
  const [title, detail] = titleAndDetail(group);
  return html`
    <article class="card group">
      <div class="count"><b>${count(group.count)}</b><small>${percent(group.count, failed)}</small></div>
      <div class="what">
        <h3><bdi>${group.host || "Other hosts and codes"}</bdi></h3>
        <p class="tags"><span class="tag">${words(group.reason)}</span>${group.code && html`<code class="tag">${group.code}</code>`}</p>
        ${title && html`<p><bdi>${title}</bdi></p>`}
        ${detail && html`<p class="muted"><bdi>${detail}</bdi></p>`}
        ${group.example_url && html`<p class="example muted">Example: <a href=${href(group.example_url)} target="_blank" rel="noopener noreferrer"><bdi>${group.example_url}</bdi></a></p>`}
      </div>
      <div class="actions">
        <button onClick=${show}>Attempts</button>
        <a class="button" href=${rows}>${group.host ? "Rows" : "Rows of this reason"}</a>
        ${canRerun && html`<button onClick=${() => askRerun(job, run, changed, group)}>${group.host ? "Rerun this group" : "Rerun this reason"}</button>`}
      </div>
    </article>`;
}
