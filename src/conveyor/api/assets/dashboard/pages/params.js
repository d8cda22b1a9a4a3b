// Scraper parameters as rows of a name and a value. The API checks them.

import { html, useEffect, useState } from "../preact.js";
import { parameterNames } from "../api.js";

let known;

export function Params({ value, change, label = "Parameters", removable = false }) {
  const [names, setNames] = useState([]);
  useEffect(() => {
    known ??= parameterNames().catch(() => []);
    known.then(setNames);
  }, []);
  const set = (at, part) => change(value.map((one, index) => (index === at ? { ...one, ...part } : one)));
  return html`
    <fieldset class="params"><legend>${label}</legend>
      <datalist id="parameter-names">${names.map((name) => html`<option value=${name} />`)}</datalist>
      ${value.map((one, index) => html`
        <div class="pair">
          <input aria-label="Parameter" list="parameter-names" placeholder="premium_proxy" required value=${one.name} onInput=${(event) => set(index, { name: event.target.value })} />
          <input aria-label="Value" placeholder=${removable ? "removed" : "true"} value=${one.value} onInput=${(event) => set(index, { value: event.target.value })} />
          <button type="button" class="quiet icon" aria-label="Remove parameter" onClick=${() => change(value.filter((_, other) => other !== index))}>✕</button>
        </div>`)}
      ${removable && value.length > 0 && html`<p class="muted small">An empty value removes the parameter.</p>`}
      <button type="button" class="quiet" onClick=${() => change([...value, { name: "", value: "" }])}>+ Add parameter</button>
    </fieldset>`;
}

/** The object that the API takes, or undefined if there are none. `empty` stands for an empty value. */
export function paramsOf(rows, empty = "") {
  const given = rows.filter((one) => one.name.trim()).map((one) => [one.name.trim(), one.value.trim() || empty]);
  return given.length ? Object.fromEntries(given) : undefined;
}
