import { html, useState } from "../preact.js";
import { get } from "../api.js";
import { bytes, format, millis, money, titleOf } from "../format.js";
import { Empty, Loaded, Status, link, openDialog, right, useLoad } from "../ui.js";
import { Task } from "./task.js";

const PAGE = 50;
const MOST_READS = 10; // in one go: with a filter, a page of the API may hold fewer rows, even none
const STATUSES = { all: "All", successful: "Successful", failed: "Failed", processing: "Not finished" };
const FILTERS = { host: "Host", reason: "Reason", code: "Code" };

/** The address of the rows of a run; `query` has the filters. */
export function rowsAddress(job, query) {
  const given = Object.entries(query).filter(([, value]) => value);
  return `${link("jobs", job.job_id, "rows")}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

export function Rows({ job, run, query }) {
  const status = Object.hasOwn(STATUSES, query.status || "") ? query.status : "all";
  const filters = Object.fromEntries(Object.keys(FILTERS).filter((name) => query[name]).map((name) => [name, query[name]]));
  const [host, setHost] = useState("");
  const [turn, setTurn] = useState(0);
  const show = (task) => openDialog({ title: "Task", wide: true, body: html`<${Task} job=${job} run=${run} task=${task} />` });
  const address = (change) => rowsAddress(job, { run: query.run, status: query.status, ...filters, ...change });
  const search = (event) => {
    event.preventDefault();
    location.hash = address({ host: host.trim().toLowerCase() });
    setHost("");
  };
  return html`
    <div class="bar-of-filters">
      <nav class="switch" aria-label="Status">
        ${Object.entries(STATUSES).map(([name, label]) => html`<a href=${address({ status: name === "all" ? "" : name })} aria-current=${name === status ? "true" : null}>${label}</a>`)}
      </nav>
      <form role="search" onSubmit=${search}><input type="search" aria-label="Only rows of the host" placeholder="Only rows of the host…" value=${host} onInput=${(event) => setHost(event.target.value)} /></form>
      <button class="quiet" onClick=${() => setTurn(turn + 1)}>Refresh</button>
    </div>
    ${Object.keys(filters).length > 0 && html`
      <p class="tags">${Object.entries(filters).map(([name, value]) => html`<span class="tag">${FILTERS[name]}: <bdi>${value}</bdi> <a href=${address({ [name]: "" })} aria-label=${`Remove the filter ${FILTERS[name]}`}>✕</a></span> `)}</p>`}
    <${Pages} key=${address({})} ...${{ job, run, filters: { status, ...filters }, turn, show }} />`;
}

/** Read pages from `cursor` on until there are enough rows. */
async function read(path, filters, cursor) {
  const rows = [];
  for (let reads = 0; reads < MOST_READS; reads++) {
    const page = await get(path, { ...filters, limit: PAGE - rows.length, cursor });
    rows.push(...page.results);
    cursor = page.next_cursor;
    if (!cursor || rows.length >= PAGE) break;
  }
  return { rows, next: cursor };
}

function Pages({ job, run, filters, turn, show }) {
  const [cursors, setCursors] = useState([null]); // of this page and those before it
  const path = `/jobs/${job.job_id}/runs/${run.run_id}/results`;
  const load = async () => ({ ...(await read(path, filters, cursors.at(-1))), of: cursors });
  const page = useLoad(load, [cursors, run.status, turn]);
  // The page before is shown until the next one is loaded, and its cursor leads to that one.
  return html`
    <${Loaded} of=${page}>${({ rows, next, of }) => html`
      <${Table} rows=${rows} isSearched=${next} show=${show} />
      <p class="pages">
        <button disabled=${cursors.length === 1} onClick=${() => setCursors(cursors.slice(0, -1))}>← Previous</button>
        <span class="muted">Page ${cursors.length}</span>
        <button disabled=${!next || of !== cursors} onClick=${() => setCursors([...cursors, next])}>${next && rows.length < PAGE ? "Search on" : "Next"} →</button>
      </p>`}<//>`;
}

function Table({ rows, isSearched, show }) {
  if (!rows.length) return html`<${Empty} title=${isSearched ? "No row found so far" : "No rows here"} />`;
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
