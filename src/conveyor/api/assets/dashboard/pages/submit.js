// A new job: URLs pasted, or a file uploaded as a file input.

import { html, useEffect, useRef, useState } from "../preact.js";
import { call, newOnce, upload } from "../api.js";
import { bytes, percent, plural } from "../format.js";
import { Field, Problem, link, say, useTitle } from "../ui.js";
import { DELIMITERS, columnsOf, read } from "./list-file.js";
import { Params, paramsOf } from "./params.js";
import { ScheduleFields, draftOf, scheduleOf } from "./schedule-form.js";

const NUMBERS = {
  max_inflight: ["Tasks at a time", "100"],
  max_per_host: ["For each host", "no limit"],
  retries: ["Retries", "3"],
  result_ttl_days: ["Keep results (days)", "14"],
};

export function Submit() {
  useTitle("New job");
  const [draft, setDraft] = useState({ source: "paste", text: "", name: "", params: [], numbers: {}, webhook: "", schedule: null });
  const [file, setFile] = useState(null);
  const [state, setState] = useState({ busy: false, error: null, sent: null });
  const finished = useRef(null); // the upload that a retry names again
  const last = useRef({}); // the body of the last call, and its key
  const set = (part) => setDraft((before) => ({ ...before, ...part }));
  const urls = draft.text.split("\n").map((line) => line.trim()).filter(Boolean);
  const choose = async (chosen) => {
    setFile({ file: chosen, ...(await read(chosen)), onInvalid: "skip" });
    set({ source: "file", name: draft.name || chosen.name.slice(0, 100) });
  };
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, sent: null });
    try {
      const source = draft.source === "file" ? await uploaded(file, finished, (sent) => setState((before) => ({ ...before, sent }))) : { tasks: urls.map((url) => ({ url })) };
      const body = { ...bodyOf(draft), ...source };
      const answer = await call("POST", "/jobs", { body, once: onceFor(body, last) });
      say(answer.accepted_tasks ? `${plural(answer.accepted_tasks, "task")} accepted` : "The list was accepted and is being read");
      location.hash = link("jobs", answer.job_id);
    } catch (error) {
      if (error.code?.startsWith("file_input")) finished.current = null;
      setState({ busy: false, error, sent: null });
    }
  };
  const ready = draft.source === "file" ? file : urls.length > 0;
  return html`
    <p class="crumbs"><a href="#/">Jobs</a></p>
    <h1>New job</h1>
    <form class="card submit" onSubmit=${submit}>
      <div class="switch" role="group" aria-label="Tasks from">
        <button type="button" aria-pressed=${draft.source === "paste"} onClick=${() => set({ source: "paste" })}>Paste URLs</button>
        <button type="button" aria-pressed=${draft.source === "file"} onClick=${() => set({ source: "file" })}>Upload a list</button>
      </div>
      ${draft.source === "paste"
        ? html`<${Field} label="URLs, one a line" hint=${plural(urls.length, "URL")}><textarea rows="10" spellcheck=${false} placeholder=${"https://example.com/1\nhttps://example.com/2"} value=${draft.text} onInput=${(event) => set({ text: event.target.value })}></textarea><//>`
        : html`<${FileChoice} file=${file} choose=${choose} change=${(part) => setFile({ ...file, ...part })} />`}
      <${Field} label="Name"><input maxlength="100" value=${draft.name} onInput=${(event) => set({ name: event.target.value })} /><//>
      <${Params} value=${draft.params} change=${(params) => set({ params })} label="Scraper parameters" />
      <${More} draft=${draft} set=${set} />
      <${Problem} error=${state.error} />
      ${state.sent != null && html`<div class="uploading"><progress max="1" value=${state.sent} aria-label="Upload"></progress><span>${percent(state.sent, 1)}</span></div>`}
      <footer><button class="primary" disabled=${!ready || state.busy}>${state.busy ? (state.sent != null && state.sent < 1 ? "Uploading…" : "Submitting…") : draft.schedule ? "Schedule job" : "Submit job"}</button></footer>
    </form>`;
}

function More({ draft, set }) {
  return html`
    <details>
      <summary>More settings</summary>
      <div class="fields">
        ${Object.entries(NUMBERS).map(([name, [label, usual]]) => html`
          <${Field} label=${label}><input type="number" min="0" placeholder=${usual} value=${draft.numbers[name] || ""} onInput=${(event) => set({ numbers: { ...draft.numbers, [name]: event.target.value } })} /><//>`)}
      </div>
      <${Field} label="Webhook" hint="Receives an event when the run ends"><input type="url" placeholder="https://example.com/hook" value=${draft.webhook} onInput=${(event) => set({ webhook: event.target.value })} /><//>
      <label class="choice"><input type="checkbox" checked=${draft.schedule != null} onChange=${(event) => set({ schedule: event.target.checked ? draftOf() : null })} /> Run by a schedule</label>
      ${draft.schedule && html`<${ScheduleFields} draft=${draft.schedule} change=${(schedule) => set({ schedule })} />`}
    </details>`;
}

function FileChoice({ file, choose, change }) {
  const [over, setOver] = useState(false);
  // A file that misses the target must not replace the page.
  useEffect(() => {
    const ignore = (event) => event.preventDefault();
    addEventListener("dragover", ignore);
    addEventListener("drop", ignore);
    return () => {
      removeEventListener("dragover", ignore);
      removeEventListener("drop", ignore);
    };
  }, []);
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files[0]) choose(event.dataTransfer.files[0]);
  };
  const columns = file && columnsOf(file.line, file.delimiter);
  const guess = (delimiter) => columnsOf(file.line, delimiter)?.guess ?? "url";
  return html`
    <label class=${`drop ${over ? "over" : ""}`} onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <input type="file" accept=".csv,.tsv,.ndjson,.jsonl,.txt,.gz,.zst" aria-label="List of tasks" onChange=${(event) => event.target.files[0] && choose(event.target.files[0])} />
      ${file ? html`<b><bdi>${file.file.name}</bdi></b><small>${bytes(file.file.size)}</small>` : html`<b>Drop a list here, or choose one</b><small>CSV, NDJSON or plain text, also compressed with gzip or zstd</small>`}
    </label>
    ${file && html`
      <div class="fields">
        <${Field} label="Format"><select value=${file.type} onChange=${(event) => change({ type: event.target.value })}><option value="csv">CSV</option><option value="ndjson">NDJSON</option><option value="txt">One URL a line</option></select><//>
        ${file.type === "csv" && html`
          <${Field} label="Delimiter"><select value=${file.delimiter} onChange=${({ target }) => change({ delimiter: target.value, ...(file.header ? { column: guess(target.value) } : {}) })}>${Object.entries(DELIMITERS).map(([one, name]) => html`<option value=${one}>${name}</option>`)}</select><//>
          <${Field} label="First row"><select value=${file.header ? "names" : "data"} onChange=${({ target }) => change({ header: target.value === "names", column: target.value === "names" ? guess(file.delimiter) : 0 })}><option value="names">Names of columns</option><option value="data">Data</option></select><//>
          <${Field} label="Column of the URL" hint=${columns ? `${plural(columns.names.length, "column")} found` : ""}>
            ${columns && file.header
              ? html`<select value=${file.column} onChange=${(event) => change({ column: event.target.value })}>${columns.names.map((name) => html`<option value=${name}>${name}</option>`)}</select>`
              : html`<input required value=${file.column} onInput=${(event) => change({ column: event.target.value })} />`}
          <//>`}
        <${Field} label="Rows that are not tasks"><select value=${file.onInvalid} onChange=${(event) => change({ onInvalid: event.target.value })}><option value="skip">Skip and report</option><option value="fail">Stop the run</option></select><//>
      </div>`}`;
}

/** Upload a file, once: a retry names the same file input, so that its body is the same. */
async function uploaded(choice, finished, onProgress) {
  const { file, onInvalid } = choice;
  const body = inputOf(choice);
  const as = JSON.stringify(body);
  if (finished.current?.file !== file || finished.current.as !== as) {
    const { file_input_id: id, upload: target } = await call("POST", "/job_inputs", { body });
    await upload(target, file, onProgress);
    finished.current = { file, as, id };
  }
  onProgress(1);
  return { file_input_id: finished.current.id, on_invalid: onInvalid };
}

function inputOf({ file, type, delimiter, header, column }) {
  const csv = { delimiter, header, fields: { url: header ? column : Number(column) } };
  return { type, size: file.size, ...(type === "csv" ? { csv } : {}) };
}

/** The key of a call: that of the last one if this repeats it, whose answer may have been lost. */
function onceFor(body, last) {
  const text = JSON.stringify(body);
  if (last.current.text !== text) last.current = { text, once: newOnce() };
  return last.current.once;
}

function bodyOf(draft) {
  const numbers = Object.entries(draft.numbers).filter(([, value]) => value !== "").map(([name, value]) => [name, Number(value)]);
  return {
    ...Object.fromEntries(numbers),
    ...(draft.name.trim() ? { name: draft.name.trim() } : {}),
    ...(draft.webhook ? { webhook: { url: draft.webhook } } : {}),
    ...(draft.schedule ? { type: "scheduled", schedule: scheduleOf(draft.schedule) } : {}),
    zenrows_params: paramsOf(draft.params),
  };
}
