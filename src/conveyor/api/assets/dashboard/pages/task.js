// One task: its attempts, what is known of its page, and the page in a frame that can do nothing.

import { html, useEffect, useState } from "../preact.js";
import { content, get } from "../api.js";
import { at, bytes, href, millis, money, plural, told } from "../format.js";
import { Loaded, Problem, Status, useLoad } from "../ui.js";

const LARGEST_SHOWN = 2_000_000; // bytes; larger pages are downloaded
const TEXT = /^(text\/|application\/(json|xml|.*\+json|.*\+xml))/;

export function Task({ job, run, task }) {
  const path = `/jobs/${job.job_id}/runs/${run.run_id}/tasks/${task.task_id}`;
  const history = useLoad(() => get(`${path}/history`), [path]);
  const facts = [
    ["Status", html`<${Status} of=${task.status} />`],
    ["Final URL", task.final_url && html`<${Address} url=${task.final_url} />`],
    ["HTTP status", task.http_status],
    ["Size", task.size != null && bytes(task.size)],
    ["Type", task.content_type],
    ["Duration", task.duration_ms != null && millis(task.duration_ms)],
    ["Cost", task.cost != null && cost(task)],
    ["External id", task.external_id],
    ["Inherited from", task.source_run_id],
    ["Task id", html`<code class="id">${task.task_id}</code>`],
    ...Object.entries(task.metadata || {}).map(([name, value]) => [name, String(value)]),
  ].filter(([, value]) => value);
  return html`<div>
    <p class="address"><${Address} url=${task.url} /></p>
    ${task.error && html`<${Refusal} error=${task.error} />`}
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt><bdi>${name}</bdi></dt><dd><bdi>${value}</bdi></dd></div>`)}</dl>
    <h3>Attempts</h3>
    <${Loaded} of=${history}>${({ events }) => events.length === 0
      ? html`<p class="muted">No attempt has ended yet.</p>`
      : html`<ol class="timeline">${events.map((one) => html`<${Attempt} attempt=${one} />`)}</ol>`}<//>
    ${task.result_url && html`<${Preview} path=${`${path}/content`} task=${task} />`}
  </div>`;
}

function Refusal({ error }) {
  const [title, detail] = told(error);
  return html`<div class="notice bad"><p><b><bdi>${title}</bdi></b> <code>${error.code}</code></p>${detail && html`<p><bdi>${detail}</bdi></p>`}</div>`;
}

function Attempt({ attempt }) {
  const { error, spend } = attempt;
  const [title, detail] = error ? told(error) : ["Scraped"];
  return html`
    <li class=${error ? "bad" : "good"}>
      <b><bdi>${title}</bdi></b> ${error?.code && html`<code>${error.code}</code>`}
      <small>Attempt ${attempt.attempt} · ${at(attempt.started_at)} · ${millis(attempt.duration_ms ?? new Date(attempt.ended_at) - new Date(attempt.started_at))}${attempt.http_status ? ` · HTTP ${attempt.http_status}` : ""} · ${cost(spend)}</small>
      ${detail && html`<p class="muted"><bdi>${detail}</bdi></p>`}
    </li>`;
}

const cost = (spend) => money(spend.cost) + (spend.credits ? ` (${plural(spend.credits, "credit")})` : "");

function Preview({ path, task }) {
  const [view, setView] = useState("page");
  const [shown, setShown] = useState({});
  const isShown = task.size <= LARGEST_SHOWN && (TEXT.test(task.content_type || "") || task.type !== "pdf");
  useEffect(() => {
    if (!isShown) return undefined;
    const stop = new AbortController();
    let url;
    (async () => {
      const blob = await content(path, stop.signal);
      const source = await blob.text();
      const isPage = /html/.test(task.content_type || blob.type);
      if (isPage) url = URL.createObjectURL(new Blob([inert(source)], { type: "text/html; charset=utf-8" }));
      setShown({ source, url });
    })().catch((error) => stop.signal.aborted || setShown({ error }));
    return () => {
      stop.abort();
      URL.revokeObjectURL(url);
    };
  }, [path]);
  return html`<section>
    <div class="preview-head">
      <h3>Page</h3>
      ${shown.url && html`
        <div class="switch" role="group" aria-label="Show">
          <button type="button" aria-pressed=${view === "page"} onClick=${() => setView("page")}>Page</button>
          <button type="button" aria-pressed=${view === "source"} onClick=${() => setView("source")}>Source</button>
        </div>`}
      <a class="button" href=${task.result_url} download=${task.task_id}>Download</a>
    </div>
    <${Problem} error=${shown.error} />
    ${!isShown && html`<p class="muted">${bytes(task.size)} of ${task.content_type || task.type}: download it to see it.</p>`}
    ${isShown && !shown.source && !shown.error && shown.source !== "" && html`<p class="loading">Loading…</p>`}
    ${shown.url && view === "page" && html`
      <iframe class="preview" sandbox="" src=${shown.url} title="The scraped page"></iframe>
      <p class="muted small">Shown without its scripts, styles, images and links: nothing of it can run or be loaded.</p>`}
    ${shown.source != null && (!shown.url || view === "source") && html`<pre class="source" tabindex="0">${shown.source}</pre>`}
  </section>`;
}

/**
 * Return a page without what the frame would refuse anyway. The sandbox and the policy of this page
 * are what protects the reader; this keeps the browser's console free of their refusals.
 */
function inert(source) {
  const page = new DOMParser().parseFromString(source, "text/html");
  page.querySelectorAll("script, style, link, meta, base, iframe, frame, object, embed, template").forEach((one) => one.remove());
  for (const element of page.querySelectorAll("*")) {
    for (const { name } of [...element.attributes]) {
      if (/^on|^(style|href|src|srcset|poster|background|data|action|formaction|ping|autofocus)$|^xlink:/i.test(name)) element.removeAttribute(name);
    }
  }
  const scheme = page.createElement("meta");
  scheme.name = "color-scheme";
  scheme.content = "light dark";
  page.head.prepend(scheme);
  return `<!doctype html>${page.documentElement.outerHTML}`;
}

function Address({ url }) {
  const target = href(url);
  return target
    ? html`<a href=${target} target="_blank" rel="noopener noreferrer"><bdi>${url}</bdi></a>`
    : html`<bdi>${url}</bdi>`;
}
