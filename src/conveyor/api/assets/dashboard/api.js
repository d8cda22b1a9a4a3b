// The client of the public API. The key is kept in the tab and sent as a header, never in a URL.

const KEY = "conveyor-key";
const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);
// The service names it where any key will do. Elsewhere this key may be sent to the gateway.
const DEFAULT_KEY = document.querySelector('meta[name="default-key"]').content;

const base = new URL("v1", document.baseURI).href;

class ApiError extends Error {
  constructor(problem, status) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.code = problem.code || "";
    this.problem = problem;
  }
}

/** Whether the same call may succeed later: the network, a limit or the service was at fault. */
export const isTransient = (error) => !(error instanceof ApiError) || error.status >= 429;

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
  isDefault: () => sessionStorage.getItem(KEY) === DEFAULT_KEY,
};

let onSignedOut = () => {};

export function whenSignedOut(callback) {
  onSignedOut = callback;
}

/** Return whether the service accepts a key. */
export async function accepts(candidate) {
  const response = await fetch(`${base}/jobs?limit=1`, { headers: { "X-API-Key": candidate } });
  if (response.status === 401) return false;
  if (!response.ok) throw await errorOf(response);
  return true;
}

/** Sign in with the default key of a service on this machine that has one. */
export function signInByDefault() {
  if (!key.get() && DEFAULT_KEY && LOOPBACK.has(location.hostname)) key.set(DEFAULT_KEY);
  return Boolean(key.get());
}

/** Call the API and return the decoded JSON, or null for an empty response. */
export async function call(method, path, { body, query, signal, once } = {}) {
  const response = await send(method, path, { body, query, signal, once });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const get = (path, query, signal) => call("GET", path, { query, signal });

/** Return the content of a task as a blob. */
export async function content(path, signal) {
  return (await send("GET", path, { signal })).blob();
}

/** Return the lines of an NDJSON response as objects. */
export async function lines(path, signal) {
  const text = await (await send("GET", path, { signal })).text();
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

async function send(method, path, { body, query, signal, headers, once } = {}) {
  const response = await fetch(base + path + queryOf(query), {
    method,
    signal,
    headers: {
      "X-API-Key": key.get() || "",
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      ...(once ? { "Idempotency-Key": once } : {}),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.ok) return response;
  if (response.status === 401) onSignedOut();
  throw await errorOf(response);
}

function queryOf(query) {
  const given = Object.entries(query || {}).filter(([, value]) => value != null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function errorOf(response) {
  const problem = await response.json().catch(() => ({}));
  return new ApiError(problem, response.status);
}

/** Return a key that makes a call safe to repeat. */
export function newOnce() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

/**
 * Follow the events of a run until it ends or `signal` aborts. A broken stream is resumed.
 * `EventSource` is not used because it cannot send the header with the key.
 */
export async function follow(path, onProgress, signal) {
  let last = null;
  while (!signal.aborted) {
    try {
      const headers = last ? { "Last-Event-ID": last } : {};
      const response = await send("GET", path, { signal, headers });
      for await (const event of eventsOf(response.body)) {
        last = event.id || last;
        onProgress(JSON.parse(event.data), event.event === "end");
        if (event.event === "end") return;
      }
    } catch (error) {
      if (signal.aborted || !isTransient(error)) return;
    }
    await delay(2000, signal);
  }
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => line.split(/: ?(.*)/s, 2));
      const event = Object.fromEntries(fields.filter(([name]) => name));
      if (event.data) yield event;
    }
  }
}

export function delay(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/**
 * The address of an upload link as seen from this page, which may be open under another name of the
 * service than that of its links (`public_url`). The signature covers the path alone.
 */
function reachable(url) {
  const path = new URL(url).pathname.match(/_local\/inputs\/[^/]+$/);
  return path ? new URL(path[0] + new URL(url).search, document.baseURI).href : url;
}

/** Upload a file to a signed link, which may lead to the storage: without the key. */
export function upload(link, file, onProgress) {
  const url = reachable(link.url);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(link.method, url);
    for (const [name, value] of Object.entries(link.headers)) {
      // The browser sets the length itself and refuses a script that does.
      if (name.toLowerCase() !== "content-length") request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => onProgress(event.loaded / (event.total || 1));
    request.onload = () => {
      if (request.status < 300) return resolve();
      let problem = { title: `The upload was refused with HTTP ${request.status}` };
      try {
        problem = JSON.parse(request.responseText);
      } catch {
        // Storage answers errors in its own form.
      }
      reject(new ApiError(problem, request.status));
    };
    request.onerror = () => reject(new Error(lost(url)));
    request.send(file);
  });
}

/** A browser does not tell a script whether a connection was lost or a rule of the storage refused it. */
const lost = (url) =>
  new URL(url).origin === location.origin
    ? "The upload failed: the connection was lost."
    : `The upload failed: the connection to ${new URL(url).host} was lost, or the storage does not allow uploads from this page. An operator sets its CORS rules with \`conveyor migrate\` and \`s3_origins\`.`;

/** The names of scraper parameters, from the description of the API. */
export async function parameterNames() {
  const response = await fetch(new URL("openapi.json", document.baseURI));
  const schema = (await response.json()).components.schemas.RerunBody.properties.zenrows_params;
  const [known] = [schema, ...(schema.anyOf || [])].filter((one) => one.properties);
  return known ? Object.keys(known.properties) : [];
}
