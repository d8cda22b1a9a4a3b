// What the pages share: loading, dialogs, messages and small components.

import { html, useCallback, useEffect, useRef, useState } from "./preact.js";
import { get } from "./api.js";
import { count, percent, words } from "./format.js";

/**
 * Load data when `dependencies` change, and every `every` milliseconds while the page is visible,
 * unless `unless()` tells that nothing has changed.
 * Until then the earlier data stays. So a component needs the id of what it shows as its `key`, or
 * it would show another's.
 */
export function useLoad(load, dependencies, { every, unless = () => false } = {}) {
  const [state, setState] = useState({ data: null, error: null });
  const latest = useRef(0);
  const reload = useCallback(async () => {
    const turn = ++latest.current;
    let next;
    try {
      next = { data: await load(), error: null };
    } catch (error) {
      next = { error };
    }
    // The response to an earlier call may arrive after that to a later one.
    if (turn === latest.current) setState((before) => ({ ...before, ...next }));
  }, dependencies);
  useEffect(() => {
    reload();
    return () => latest.current++;
  }, [reload]);
  useEffect(() => {
    if (!every) return undefined;
    const timer = setInterval(() => document.hidden || unless() || reload(), every);
    return () => clearInterval(timer);
  }, [reload, every]);
  return { ...state, reload };
}

/**
 * A listing by pages: what the page in view has, and the buttons to the next and the one before.
 * It is loaded again when `again` changes, and every `every` milliseconds.
 */
export function usePages(path, { query, limit = 50, every, again = [], labels = ["← Back", "More →"] } = {}) {
  const [cursors, setCursors] = useState([null]);
  const page = useLoad(() => get(path, { ...query, limit, cursor: cursors.at(-1) }), [path, cursors, ...again], { every });
  const next = page.data?.next_cursor;
  const buttons = (next || cursors.length > 1) && html`
    <p class="pages">
      <button disabled=${cursors.length === 1} onClick=${() => setCursors(cursors.slice(0, -1))}>${labels[0]}</button>
      <button disabled=${!next} onClick=${() => setCursors([...cursors, next])}>${labels[1]}</button>
    </p>`;
  return { page, buttons };
}

/** Count seconds, so that ages stay right. */
export function useNow(every = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} · Conveyor` : "Conveyor";
  }, [title]);
}

// One dialog and the messages, shown by `Overlays`.

let overlays = { dialog: null, messages: [] };
let showOverlays = () => {};
let lastMessage = 0;

function change(next) {
  overlays = { ...overlays, ...next };
  showOverlays(overlays);
}

export const openDialog = (dialog) => change({ dialog });
const closeDialog = () => change({ dialog: null });

export function say(text, kind = "good") {
  const id = ++lastMessage;
  change({ messages: [...overlays.messages, { id, text, kind }] });
  setTimeout(
    () => change({ messages: overlays.messages.filter((one) => one.id !== id) }),
    kind === "bad" ? 12_000 : 5_000,
  );
}

export function Overlays() {
  const [{ dialog, messages }, show] = useState(overlays);
  useEffect(() => {
    showOverlays = show;
  }, []);
  return html`
    ${dialog && html`<${Dialog} ...${dialog} />`}
    <div class="messages" role="status" aria-live="polite">
      ${messages.map((one) => html`<p key=${one.id} class=${`message ${one.kind}`}>${one.text}</p>`)}
    </div>`;
}

/** A modal dialog. `wide` ones are panels at the side of the window. */
function Dialog({ title, body, wide }) {
  const element = useRef();
  useEffect(() => {
    const shown = element.current;
    const opener = document.activeElement;
    shown.showModal();
    shown.addEventListener("close", closeDialog);
    return () => {
      shown.removeEventListener("close", closeDialog);
      shown.close(); // while it is open, nothing beneath it takes the focus
      opener?.focus();
    };
  }, []);
  const outside = (event) => event.target === element.current && closeDialog();
  return html`
    <dialog ref=${element} class=${wide ? "panel" : ""} aria-labelledby="dialog-title" onMouseDown=${outside}>
      <div class="dialog">
        <header>
          <h2 id="dialog-title">${title}</h2>
          <button type="button" class="quiet icon" aria-label="Close" onClick=${closeDialog}>✕</button>
        </header>
        ${body}
      </div>
    </dialog>`;
}

/** Ask before an action; the dialog stays open with the error if it fails. */
export function confirm({ title, text, action, danger, run, done }) {
  openDialog({ title, body: html`<${Form} action=${action} danger=${danger} run=${run} done=${done}><p>${text}</p><//>` });
}

/** A form of a dialog: its fields, and the button that runs its action. */
export function Form({ children, action, danger, run, done, disabled, stay }) {
  const [state, setState] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      const result = await run();
      if (!stay) closeDialog();
      if (done) say(typeof done === "function" ? done(result) : done);
      if (stay) setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`
    <form onSubmit=${submit}>
      ${children}
      <${Problem} error=${state.error} />
      <footer>
        <button type="button" class="quiet" onClick=${closeDialog}>Cancel</button>
        <button class=${danger ? "danger" : "primary"} disabled=${state.busy || disabled}>
          ${state.busy ? "Please wait…" : action}
        </button>
      </footer>
    </form>`;
}

export function Problem({ error }) {
  if (!error) return null;
  const bad = error.problem?.invalid_tasks || [];
  return html`
    <div class="notice bad" role="alert">
      <p>${error.message}</p>
      ${bad.length > 0 &&
      html`<ul>
        ${bad.slice(0, 10).map((one) => html`<li>${one.line ? `Line ${one.line}` : `Task ${one.index + 1}`}: ${words(one.reason)} <code>${one.value || ""}</code></li>`)}
        ${bad.length > 10 && html`<li>and ${count(bad.length - 10)} more</li>`}
      </ul>`}
    </div>`;
}

/** The data of `useLoad`, or what is to be seen in its place. */
export function Loaded({ of, children }) {
  if (of.data) return html`<${Problem} error=${of.error} />${children(of.data)}`;
  if (of.error) return html`<${Problem} error=${of.error} />`;
  return html`<p class="loading">Loading…</p>`;
}

const KINDS = {
  running: "live", completed: "good", stopped: "warn", failed: "bad", pending: "idle",
  successful: "good", processing: "live", expired: "idle", paused: "warn", waiting: "warn",
  delivered: "good", scheduled: "idle", active: "good",
};

export function Status({ of, label }) {
  return html`<span class=${`status ${KINDS[of] || "idle"}`}>${label || words(of)}</span>`;
}

/** The status of a run. Paused and waiting take the place of `running`. */
export function RunStatus({ run }) {
  if (!run) return html`<${Status} of="scheduled" label="Not run yet" />`;
  if (run.status === "running" && run.pause_state === "paused") return html`<${Status} of="paused" />`;
  if (run.status === "running" && run.waiting) return html`<${Status} of="waiting" />`;
  return html`<${Status} of=${run.status} label=${run.status === "pending" ? "Waiting for tasks" : null} />`;
}

export function Bar({ stats, label = true }) {
  const { total, completed, successful, failed } = stats;
  const width = (part) => `${total ? (100 * part) / total : 0}%`;
  const text = `${percent(completed, total)} of ${count(total)} tasks done, ${count(failed)} failed`;
  return html`
    <div class="bar" role="img" aria-label=${text} title=${text}>
      <i class="good" style=${{ width: width(successful) }}></i>
      <i class="bad" style=${{ width: width(failed) }}></i>
    </div>
    ${label && html`<small class="numbers">${percent(completed, total)} of ${count(total)}${failed > 0 && html`, <b class="bad">${count(failed)} failed</b>`}</small>`}`;
}

export function Figure({ label, value, kind = "", hint }) {
  return html`<div class=${`figure ${kind}`}><dt>${label}</dt><dd>${value}</dd>${hint && html`<dd class="hint">${hint}</dd>`}</div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

export function Copy({ text }) {
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    say("Copied");
  };
  return html`<code class="id">${text}</code>${navigator.clipboard && html`<button type="button" class="quiet copy" aria-label=${`Copy ${text}`} onClick=${copy}>Copy</button>`}`;
}

/** The class of a figure in a table; phones leave out those that are not known. */
export const right = (value) => (value == null ? "right unknown" : "right");
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
/** Whether a job takes tasks; a run that waits for tasks says so itself. */
export const isOpen = (job, run) => job.status === "open" && run?.status !== "pending";
export const isLive = (run) => run != null && (run.status === "running" || run.status === "pending");
