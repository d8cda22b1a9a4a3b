// Shows /openapi.json: the calls by group, what each takes and answers, a curl line, and a form to try it.

// The key is that of the dashboard: kept in this tab, never in a URL.
import { key, signInByDefault } from "../../assets/api.js";

const at = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href; // also behind a prefix
const LONGEST_SHOWN = 20_000; // characters of a response
const $ = (id) => document.getElementById(id);

const make = (tag, attributes = {}, ...children) => {
  const { aria = {}, ...own } = attributes;
  const element = Object.assign(document.createElement(tag), own);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children.filter((child) => child != null));
  return element;
};

/** Text with `code` between backticks. */
const prose = (tag, text) =>
  make(tag, {}, ...text.split("`").map((part, at) => (at % 2 ? make("code", { textContent: part }) : part)));

let schemas = {};

const nameOf = (schema) => (schema?.$ref ? schema.$ref.split("/").pop() : "");
const resolved = (schema) => (schema?.$ref ? schemas[nameOf(schema)] || {} : schema || {});
const shown = (name) => name.replace(/^Wire/, "");

const kindOf = (schema) => {
  if (!schema) return "any";
  if (schema.anyOf) return schema.anyOf.map(kindOf).filter((kind) => kind !== "null").join(" or ");
  if (schema.$ref) return resolved(schema).enum ? "string" : shown(nameOf(schema));
  if (schema.type === "array") return `list of ${kindOf(schema.items)}`;
  if (Array.isArray(schema.type)) return schema.type.join(" or ");
  return schema.format || schema.type || (schema.enum ? "string" : "any");
};

/** The values that a field may have, if they are few. */
const valuesOf = (schema) => {
  const [own] = [schema, ...(schema?.anyOf || [])].map(resolved).filter((one) => one.enum);
  const of = own || resolved(schema?.items);
  return (of?.enum || []).filter((value) => value !== null).map(String);
};

const boundsOf = (schema) => {
  const [own = {}] = [schema, ...(schema?.anyOf || [])].filter((one) => one?.minimum != null || one?.maxLength != null || one?.maxItems != null);
  if (own.maximum != null) return ` ${own.minimum ?? 0} to ${own.maximum.toLocaleString("en")}.`;
  if (own.maxLength != null) return ` At most ${own.maxLength.toLocaleString("en")} characters.`;
  return own.maxItems != null ? ` At most ${own.maxItems.toLocaleString("en")}.` : "";
};

const about = (schema, text) => {
  const values = valuesOf(schema);
  const cell = prose("td", (text || "") + boundsOf(schema));
  if (values.length) cell.append(make("span", { className: "values" }, ...values.map((value) => make("code", { textContent: value }))));
  return cell;
};

/** The fields of a document, and those of the documents in it. */
const fieldsOf = (name, seen = new Set()) => {
  seen.add(name);
  const { properties = {}, required = [] } = schemas[name] || {};
  const inner = [];
  const rows = Object.entries(properties).map(([field, schema]) => {
    for (const one of [schema, schema.items, ...(schema.anyOf || []), ...(schema.anyOf || []).map((each) => each.items)]) {
      const of = nameOf(one);
      if (of && schemas[of]?.properties && !seen.has(of) && !inner.includes(of)) inner.push(of);
    }
    return make("tr", {},
      make("td", {}, make("code", { textContent: field }), make("small", { textContent: `${kindOf(schema)}${required.includes(field) ? "" : ", optional"}` })),
      about(schema, schema.description));
  });
  const table = make("table", {}, make("tbody", {}, ...rows));
  return [table, ...inner.filter((of) => !seen.has(of)).flatMap((of) => [make("h4", { textContent: shown(of) }), ...fieldsOf(of, seen)])];
};

/** An example of a value, from its schema. */
const exampleOf = (schema, field = "", depth = 0) => {
  if (schema?.examples) return schema.examples[0];
  if (schema?.const !== undefined) return schema.const;
  const of = resolved(schema?.anyOf ? schema.anyOf.find((one) => one.type !== "null") : schema);
  if (of.enum) return of.enum[0];
  if (of.properties && depth < 4) {
    const wanted = Object.entries(of.properties).filter(([name]) => !of.required || of.required.includes(name));
    return Object.fromEntries(wanted.map(([name, one]) => [name, exampleOf(one, name, depth + 1)]));
  }
  if (of.type === "array") return depth < 4 ? [exampleOf(of.items, field, depth + 1)] : [];
  if (of.type === "object" || of.properties) return {};
  if (of.type === "integer") return of.minimum ?? 1;
  if (of.type === "number") return 0.5;
  if (of.type === "boolean") return true;
  if (/_at$|_run$|since/.test(field)) return "2026-12-01T06:00:00Z";
  if (/url$/.test(field)) return "https://example.com/";
  return /_id$|^kid$/.test(field) ? "01KAB2C3D4E5F6G7H8J9KMNPQR" : "…";
};

const pretty = (value) => JSON.stringify(value, null, 2);
const bodyOf = (operation) => operation.requestBody?.content["application/json"];
const sampleOf = (operation) => {
  const body = bodyOf(operation);
  return body && (body.example || exampleOf(body.schema));
};
const successOf = (operation) => Object.entries(operation.responses).find(([status]) => status < 300);

const copyable = (text) => {
  // Browsers have a clipboard over HTTPS and on loopback only.
  const button = make("button", { type: "button", className: "copy", textContent: "Copy", hidden: !navigator.clipboard });
  const pre = make("pre", { tabIndex: 0, textContent: text });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return make("div", { className: "copyable" }, button, pre);
};

const curlOf = (method, path, operation) => {
  const stream = successOf(operation)?.[1].content?.["text/event-stream"] ? "-N " : "";
  const parts = [`curl ${stream}-X ${method} '${decodeURI(at(path))}'`, "-H 'X-API-Key: YOUR_KEY'"];
  const body = sampleOf(operation);
  if (body) parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(body)}'`);
  return parts.join(" \\\n  ");
};

const responseOf = (operation) => {
  const [status, { description, content = {} }] = successOf(operation);
  const [type, { schema } = {}] = Object.entries(content)[0] || [];
  const shows = schema && /json|event-stream/.test(type);
  return [make("h3", { textContent: `Response ${status}` }),
    shows ? copyable(pretty(exampleOf(schema))) : make("p", { className: "muted", textContent: type ? `${description} (${type})` : "Without a body." })];
};

const parametersOf = (operation) =>
  make("table", {}, make("tbody", {}, ...operation.parameters.map((one) =>
    make("tr", {},
      make("td", {}, make("code", { textContent: one.name }), make("small", { textContent: `${one.in}, ${kindOf(one.schema)}${one.required ? "" : ", optional"}` })),
      about(one.schema, one.description)))));

const answersOf = (operation) =>
  make("table", {}, make("tbody", {}, ...Object.entries(operation.responses).map(([status, answer]) =>
    make("tr", {}, make("td", {}, make("code", { textContent: status })), prose("td", answer.description)))));

/** A form that makes the call with the key above, and shows what came back. */
const tryOf = (method, path, operation) => {
  if (successOf(operation)?.[1].content?.["text/event-stream"]) return [];
  const inputs = operation.parameters.filter((one) => one.in !== "header").map((one) => {
    const input = make("input", { name: one.name, required: Boolean(one.required), placeholder: one.required ? "" : "optional", autocomplete: "off" });
    return { one, input, label: make("label", {}, one.name, input) };
  });
  const sample = sampleOf(operation);
  const body = sample && make("textarea", { rows: 6, spellcheck: false, value: pretty(sample) });
  const output = make("pre", { tabIndex: 0, hidden: true });
  const button = make("button", { className: "send", textContent: `Send ${method}` });
  const form = make("form", { className: "try" }, ...inputs.map(({ label }) => label), body && make("label", {}, "Body", body), button, output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let url = path;
    const query = new URLSearchParams();
    for (const { one, input } of inputs) {
      if (one.in === "path") url = url.replace(`{${one.name}}`, encodeURIComponent(input.value.trim()));
      else if (input.value) query.set(one.name, input.value);
    }
    button.disabled = true;
    output.hidden = false;
    output.textContent = await answerTo(method, `${url}${query.size ? `?${query}` : ""}`, body?.value);
    button.disabled = false;
  });
  return [make("h3", { textContent: "Try it" }), form];
};

const answerTo = async (method, url, body) => {
  const headers = { "X-API-Key": $("key").value, ...(body ? { "Content-Type": "application/json" } : {}) };
  try {
    const answer = await fetch(at(url), { method, headers, body: body || undefined });
    const isJson = /[/+]json$/.test((answer.headers.get("content-type") || "").split(";")[0]);
    const text = readable(await answer.text(), isJson);
    const rest = text.length > LONGEST_SHOWN ? `\n… ${(text.length - LONGEST_SHOWN).toLocaleString("en")} more characters` : "";
    return `${answer.status} ${answer.statusText}\n\n${text.slice(0, LONGEST_SHOWN)}${rest}`;
  } catch (error) {
    return `The call failed: ${error.message}`;
  }
};

const readable = (text, isJson) => {
  try {
    return isJson ? pretty(JSON.parse(text)) : text;
  } catch {
    return text; // such as a scraped page that its site calls JSON
  }
};

/** The parts of a call are made when it is first opened: there are many of them. */
const fill = (details, method, path, operation) => {
  const body = nameOf(bodyOf(operation)?.schema);
  const answer = nameOf(Object.values(successOf(operation)?.[1].content || {})[0]?.schema);
  details.append(
    make("div", { className: "beside" },
      make("section", {}, make("h3", { textContent: "Request" }), copyable(curlOf(method, path, operation))),
      make("section", {}, ...responseOf(operation))),
    ...(operation.parameters.length ? [make("h3", { textContent: "Parameters" }), parametersOf(operation)] : []),
    ...(body ? [make("h3", { textContent: `Body: ${shown(body)}` }), ...fieldsOf(body)] : []),
    ...(answer ? [make("h3", { textContent: `Response: ${shown(answer)}` }), ...fieldsOf(answer)] : []),
    make("h3", { textContent: "Statuses and codes" }), answersOf(operation),
    ...tryOf(method, path, operation));
};

const fieldNames = (schema, seen = new Set()) => {
  const name = nameOf(schema);
  if (name && seen.has(name)) return [];
  seen.add(name);
  return Object.entries(resolved(schema).properties || {}).flatMap(([field, one]) =>
    [field, ...[one, one.items, ...(one.anyOf || []), ...(one.anyOf || []).map((each) => each.items)].filter((of) => of?.$ref).flatMap((of) => fieldNames(of, seen))]);
};

const callOf = ({ method, path, operation }) => {
  const details = make("details", { id: operation.operationId },
    make("summary", {},
      make("span", { className: `method ${method.toLowerCase()}`, textContent: method }),
      make("code", { className: "path", textContent: path }),
      make("span", { textContent: operation.summary })));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) fill(details, method, path, operation);
    if (details.open) history.replaceState(null, "", `#${details.id}`);
  });
  const documents = [bodyOf(operation), ...Object.values(successOf(operation)?.[1].content || {})].filter(Boolean);
  const words = [method, path, operation.summary, ...operation.parameters.map((one) => one.name), ...documents.flatMap(({ schema }) => fieldNames(schema))];
  details.dataset.words = words.join(" ").toLowerCase();
  return details;
};

/** The call or group that the address names, if it names one. */
const named = () => {
  try {
    return $(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return null; // such as `#100%`
  }
};

const openNamed = () => {
  const found = named();
  if (found?.tagName === "DETAILS") found.open = true;
  found?.scrollIntoView();
};

const search = (text) => {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of document.querySelectorAll("main > section")) {
    const calls = [...section.querySelectorAll("details")];
    for (const call of calls) call.hidden = !wanted.every((word) => call.dataset.words.includes(word));
    section.hidden = calls.every((call) => call.hidden);
  }
  $("nothing").hidden = Boolean(document.querySelector("main > section:not([hidden])"));
};

const show = (api) => {
  schemas = api.components.schemas;
  $("about").replaceChildren(...`${api.info.description}\n\nVersion ${api.info.version}.`.split("\n\n").map((text) => prose("p", text)));
  const calls = Object.entries(api.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })));
  const slug = (name) => name.toLowerCase();
  $("groups").replaceChildren(...api.tags.map(({ name }) => make("a", { href: `#${slug(name)}`, textContent: name })));
  $("calls").replaceChildren(
    make("p", { id: "nothing", hidden: true, textContent: "No call or field matches." }),
    ...api.tags.map(({ name, description }) =>
      make("section", {},
        make("h2", { id: slug(name), textContent: name }), prose("p", description),
        ...calls.filter(({ operation }) => operation.tags.includes(name)).map(callOf))));
  openNamed();
};

$("tools").addEventListener("submit", (event) => event.preventDefault());
$("search").addEventListener("input", (event) => search(event.target.value));
$("key").value = signInByDefault() ? key.get() : "";
$("key").addEventListener("input", (event) => key.set(event.target.value));
addEventListener("hashchange", openNamed);

fetch(at("openapi.json")).then((answer) => answer.json()).then(show).catch((error) => {
  $("calls").textContent = `The list of calls did not load: ${error}`;
});
