import { html, useEffect, useRef, useState } from "../preact.js";
import { get } from "../api.js";
import { bytes, format, millis, money, titleOf, words } from "../format.js";
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
  const [turn, setTurn] = useState(0);
  const show = (task) => openDialog({ title: "Task", wide: true, body: html`<${Task} job=${job} run=${run} task=${task} />` });
  const address = (change) => rowsAddress(job, { run: query.run, status: query.status, ...filters, ...change });
  return html`
    <div class="bar-of-filters">
      <nav class="switch" aria-label="Status">
        ${Object.entries(STATUSES).map(([name, label]) => html`<a href=${address({ status: name === "all" ? "" : name })} aria-current=${name === status ? "true" : null}>${label}</a>`)}
      </nav>
      <${Search} filters=${filters} reasons=${Object.keys(run.stats.failure_reasons || {})} address=${address} />
      <button class="quiet" onClick=${() => setTurn(turn + 1)}>Refresh</button>
    </div>
    ${Object.keys(filters).length > 0 && html`
      <p class="tags">${Object.entries(filters).map(([name, value]) => html`<span class="tag">${FILTERS[name]}: <bdi>${value}</bdi> <a href=${address({ [name]: "" })} aria-label=${`Remove the filter ${FILTERS[name]}`}>✕</a></span> `)}</p>`}
    <${Pages} key=${address({})} ...${{ job, run, filters: { status, ...filters }, turn, show }} />`;
}

/** A form that begins with the filters of the address. Only rows that failed have a reason and a code. */
function Search({ filters, reasons, address }) {
  const form = useRef();
  useEffect(() => form.current.reset(), [address({})]);
  const search = (event) => {
    event.preventDefault();
    const given = [...new FormData(form.current)].map(([name, value]) => [name, value.trim()]);
    const { host, ...rest } = Object.fromEntries(given);
    location.hash = address({ ...rest, host: host.toLowerCase() });
  };
  const { host, reason, code } = filters;
  return html`
    <form role="search" ref=${form} onSubmit=${search}>
      <input type="search" name="host" aria-label="Only rows of the host" placeholder="Only rows of the host…" defaultValue=${host || ""} />
      ${(reasons.length > 0 || reason || code) && html`
        <select name="reason" aria-label="Reason">
          <option value="">Any reason</option>
          ${[...new Set([...reasons, ...(reason ? [reason] : [])])].map((one) => html`<option key=${one} value=${one} defaultSelected=${one === reason}>${words(one)}</option>`)}
        </select>
        <input name="code" aria-label="Code" placeholder="Code" autocomplete="off" defaultValue=${code || ""} />`}
      <button>Filter</button>
    </form>`;
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
