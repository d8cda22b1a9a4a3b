// One task: its attempts, what is known of its page, and the page in a frame that can do nothing.

import { html, useEffect, useState } from "../preact.js";
import { content, get } from "../api.js";
import { at, bytes, count, href, millis, money, plural, titleAndDetail } from "../format.js";
import { Loaded, Problem, Status, useLoad } from "../ui.js";

const LARGEST_SHOWN = 2_000_000; // bytes; larger pages are downloaded
const MOST_TAGS = 20_000; // pages with more are shown as their source
const TEXT = /^(text\/|application\/(json|ndjson|x-ndjson|xml|javascript)$|[^;]+\+(json|xml)$)/;
// Drawn by `img`, which runs nothing. An SVG is shown as its text.
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

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
  const [title, detail] = titleAndDetail(error);
  return html`<div class="notice bad"><p><b><bdi>${title}</bdi></b> <code>${error.code}</code></p>${detail && html`<p><bdi>${detail}</bdi></p>`}</div>`;
}

function Attempt({ attempt }) {
  const { error, spend } = attempt;
  const [title, detail] = error ? titleAndDetail(error) : ["Scraped"];
  return html`
    <li class=${error ? "bad" : "good"}>
      <b><bdi>${title}</bdi></b> ${error?.code && html`<code>${error.code}</code>`}
      <small>Attempt ${attempt.attempt} · ${at(attempt.started_at)} · ${millis(attempt.duration_ms ?? new Date(attempt.ended_at) - new Date(attempt.started_at))}${attempt.http_status ? ` · HTTP ${attempt.http_status}` : ""} · ${cost(spend)}</small>
      ${detail && html`<p class="muted"><bdi>${detail}</bdi></p>`}
    </li>`;
}

const cost = (spend) => money(spend.cost) + (spend.credits ? ` (${plural(spend.credits, "credit")})` : "");

/** How a result is shown: as an image, as text, or not at all. What the site said of it decides. */
function kindOf({ content_type: type, type: format }) {
  const media = type?.split(";")[0].trim().toLowerCase();
  if (!media) return ["pdf", "other"].includes(format) ? null : "text";
  if (IMAGES.has(media)) return "image";
  return TEXT.test(media) ? "text" : null;
}

/** The text of a page, in the character set that its type names. */
async function decoded(blob, type = "") {
  const [, charset = "utf-8"] = type.match(/;\s*charset\s*=\s*"?([^";\s]+)/i) || [];
  const bytes = await blob.arrayBuffer();
  try {
    return new TextDecoder(charset).decode(bytes);
  } catch {
    return new TextDecoder().decode(bytes); // no browser knows a character set of this name
  }
}

const dataUrl = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });

function Preview({ path, task }) {
  const [view, setView] = useState("page");
  const [shown, setShown] = useState({});
  const kind = kindOf(task);
  const isShown = kind && task.size <= LARGEST_SHOWN && !shown.isBinary;
  useEffect(() => {
    if (!isShown) return undefined;
    const stop = new AbortController();
    let url;
    (async () => {
      const blob = await content(path, stop.signal);
      if (kind === "image") {
        const image = await dataUrl(blob);
        return stop.signal.aborted || setShown({ image });
      }
      const source = await decoded(blob, task.content_type);
      const isPage = /html/.test(task.content_type || blob.type);
      if (stop.signal.aborted) return;
      // No text has a NUL: the site or, without its type, the format was wrong.
      if (source.includes("\0")) return setShown({ isBinary: true });
      // It would be parsed on the thread of the dashboard, in the square of its nested tags.
      const isLarge = isPage && source.split("<").length > MOST_TAGS;
      if (isPage && !isLarge) url = URL.createObjectURL(new Blob([inert(source)], { type: "text/html; charset=utf-8" }));
      setShown({ source, url, isLarge });
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
    ${isShown && shown.source == null && !shown.image && !shown.error && html`<p class="loading">Loading…</p>`}
    ${isShown && shown.image && html`<img class="preview" src=${shown.image} alt="The scraped image" onError=${() => setShown({ isBinary: true })} />`}
    ${shown.url && view === "page" && html`
      <iframe class="preview" sandbox="" src=${shown.url} title="The scraped page"></iframe>
      <p class="muted small">Shown without its scripts, styles, images and links: nothing of it can run or be loaded.</p>`}
    ${shown.isLarge && html`<p class="muted small">A page of more than ${count(MOST_TAGS)} tags is shown as its source.</p>`}
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
