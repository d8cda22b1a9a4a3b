import { html, useState } from "../preact.js";
import { get } from "../api.js";
import { bytes, format, millis, money, titleOf } from "../format.js";
import { Empty, Loaded, Status, link, openDialog, right, useLoad } from "../ui.js";
import { Task } from "./task.js";

const PAGE = 50;
const FILTERS = { all: "All", successful: "Successful", failed: "Failed", processing: "Not finished" };

export function Rows({ job, run, query }) {
  const status = FILTERS[query.status] ? query.status : "all";
  const [text, setText] = useState("");
  const [turn, setTurn] = useState(0);
  const show = (task) => openDialog({ title: "Task", wide: true, body: html`<${Task} job=${job} run=${run} task=${task} />` });
  const address = (name) => `${link("jobs", job.job_id, "rows")}?${new URLSearchParams({ ...(query.run ? { run: query.run } : {}), ...(name === "all" ? {} : { status: name }) })}`;
  return html`
    <div class="bar-of-filters">
      <nav class="switch" aria-label="Status">
        ${Object.entries(FILTERS).map(([name, label]) => html`<a href=${address(name)} aria-current=${name === status ? "true" : null}>${label}</a>`)}
      </nav>
      <input type="search" aria-label="Filter this page" placeholder="Filter this page by URL or id" value=${text} onInput=${(event) => setText(event.target.value)} />
      <button class="quiet" onClick=${() => setTurn(turn + 1)}>Refresh</button>
    </div>
    <${Pages} key=${status} ...${{ job, run, status, text, turn, show }} />`;
}

function Pages({ job, run, status, text, turn, show }) {
  const [cursors, setCursors] = useState([null]); // of this page and those before it
  const path = `/jobs/${job.job_id}/runs/${run.run_id}/results`;
  const load = async () => ({ ...(await get(path, { status, limit: PAGE, cursor: cursors.at(-1) })), of: cursors });
  const page = useLoad(load, [cursors, run.status, turn]);
  // The page before is shown until the next one is loaded, and its cursor leads to that one.
  return html`
    <${Loaded} of=${page}>${({ results, next_cursor: next, of }) => html`
      <${Table} rows=${results.filter((row) => matches(row, text))} show=${show} />
      <p class="pages">
        <button disabled=${cursors.length === 1} onClick=${() => setCursors(cursors.slice(0, -1))}>← Previous</button>
        <span class="muted">Page ${cursors.length}</span>
        <button disabled=${!next || of !== cursors} onClick=${() => setCursors([...cursors, next])}>Next →</button>
      </p>`}<//>`;
}

const matches = (row, text) =>
  !text || [row.url, row.final_url, row.external_id, row.task_id, row.error?.code].join("\n").toLowerCase().includes(text.toLowerCase());

function Table({ rows, show }) {
  if (!rows.length) return html`<${Empty} title="No rows here" />`;
  return html`
    <div class="scroll">
      <table class="rows stacks">
        <thead><tr><th>URL</th><th>Status</th><th>Outcome</th><th class="right">HTTP</th><th class="right">Size</th><th class="right">Duration</th><th class="right">Cost</th></tr></thead>
        <tbody>
          ${rows.map((row) => html`
            <tr key=${row.task_id}>
              <td class="name"><button class="link" onClick=${() => show(row)}><bdi>${row.url}</bdi></button>${row.final_url && html`<small>→ <bdi>${row.final_url}</bdi></small>`}</td>
              <td><${Status} of=${row.status} /></td>
              <td class="outcome">${row.error ? html`<bdi>${titleOf(row.error)}</bdi>` : html`<span class="muted">${row.type ? format(row.type) : "–"}</span>`}</td>
              <td class=${right(row.http_status)} data-label="HTTP">${row.http_status ?? "–"}</td>
              <td class=${right(row.size)} data-label="Size">${bytes(row.size)}</td>
              <td class=${right(row.duration_ms)} data-label="Duration">${millis(row.duration_ms)}</td>
              <td class=${right(row.cost)} data-label="Cost">${row.cost == null ? "–" : money(row.cost)}</td>
            </tr>`)}
        </tbody>
      </table>
    </div>`;
}
