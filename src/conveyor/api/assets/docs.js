// Shows /openapi.json: every call with what it takes, what it answers, and a curl line to try.
"use strict";

const make = (tag, attributes = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
};

const nameOf = (schema) => (schema && schema.$ref ? schema.$ref.split("/").pop() : "");

const kindOf = (schema) => {
  if (!schema) return "any";
  if (schema.$ref) return nameOf(schema);
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  if (schema.type === "array") return `list of ${kindOf(schema.items)}`;
  return schema.format || schema.type || "any";
};

const fieldsOf = (name, schemas) => {
  const { properties = {}, required = [] } = schemas[name] || {};
  const rows = Object.entries(properties).map(([field, schema]) =>
    make("tr", {},
      make("td", {}, make("code", { textContent: field })),
      make("td", { textContent: kindOf(schema) }),
      make("td", { textContent: required.includes(field) ? "always" : "optional" })));
  return make("table", {}, ...rows);
};

const curlOf = (method, path, operation) => {
  const parts = [`curl -X ${method} '${location.origin}${path}'`, "-H 'X-API-Key: YOUR_KEY'"];
  if (operation.requestBody) {
    parts.push("-H 'Content-Type: application/json'");
    parts.push(`-d '{"tasks": [{"url": "https://example.com/"}]}'`);
  }
  return parts.join(" \\\n  ");
};

const parametersOf = (operation) =>
  make("table", {}, ...operation.parameters.map((one) =>
    make("tr", {},
      make("td", {}, make("code", { textContent: one.name })),
      make("td", { textContent: one.in }),
      make("td", { textContent: one.description || kindOf(one.schema) }))));

const answersOf = (operation) =>
  make("table", {}, ...Object.entries(operation.responses).map(([status, answer]) => {
    const [type, content] = Object.entries(answer.content || {})[0] || ["", {}];
    return make("tr", {},
      make("td", {}, make("code", { textContent: status })),
      make("td", { textContent: answer.description }),
      make("td", { textContent: nameOf(content.schema) || type }));
  }));

const section = (title, content) => [make("h3", { textContent: title }), content];

const callOf = (method, path, operation, schemas) => {
  const body = nameOf(operation.requestBody?.content["application/json"]?.schema);
  const success = Object.entries(operation.responses).find(([status]) => status < 300);
  const answer = nameOf(success?.[1].content?.["application/json"]?.schema);
  return make("details", {},
    make("summary", {},
      make("span", { className: `method ${method.toLowerCase()}`, textContent: method }),
      make("code", { className: "path", textContent: path }),
      make("span", { textContent: operation.summary })),
    make("pre", { textContent: curlOf(method, path, operation) }),
    ...(operation.parameters.length ? section("Parameters", parametersOf(operation)) : []),
    ...(body ? section(`Body: ${body}`, fieldsOf(body, schemas)) : []),
    ...section("Answers", answersOf(operation)),
    ...(answer ? section(answer, fieldsOf(answer, schemas)) : []));
};

const show = (api) => {
  document.getElementById("about").textContent = `${api.info.description} Version ${api.info.version}.`;
  const calls = Object.entries(api.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) =>
      callOf(method.toUpperCase(), path, operation, api.components.schemas)));
  document.getElementById("calls").replaceChildren(...calls);
};

fetch("/openapi.json").then((answer) => answer.json()).then(show).catch((error) => {
  document.getElementById("calls").textContent = `The list of calls did not load: ${error}`;
});
