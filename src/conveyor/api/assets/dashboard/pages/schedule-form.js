// The fields of a schedule: once, at a rate, by a calendar, or by a line of cron.

import { html } from "../preact.js";
import { words } from "../format.js";
import { Field } from "../ui.js";

const DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const ZONES = Intl.supportedValuesOf?.("timeZone") || [];

/** The fields of the form, from a schedule of the API or from nothing. */
export function draftOf(schedule) {
  const { at, rate, calendar, cron, timezone } = schedule || {};
  const cadence = calendar?.cadence || {};
  return {
    kind: at ? "at" : calendar ? "calendar" : cron ? "cron" : "rate",
    at: at || "",
    every: rate?.every || 1,
    unit: rate?.unit || "day",
    times: calendar?.times_of_day.join(", ") || "09:00",
    cadence: cadence.weekly ? "weekly" : cadence.monthly ? "monthly" : "daily",
    weekdays: cadence.weekly?.days || ["mon"],
    days: cadence.monthly?.days.join(", ") || "1",
    cron: cron || "0 9 * * *",
    timezone: timezone || ZONE,
  };
}

const listOf = (text) => text.split(/[\s,]+/).filter(Boolean);

/** The schedule that the API takes. */
export function scheduleOf(draft) {
  if (draft.kind === "rate") return { rate: { every: Number(draft.every), unit: draft.unit } };
  if (draft.kind === "at") return { at: draft.at, timezone: draft.timezone };
  if (draft.kind === "cron") return { cron: draft.cron, timezone: draft.timezone };
  const cadence = {
    daily: { daily: {} },
    weekly: { weekly: { days: draft.weekdays } },
    monthly: { monthly: { days: listOf(draft.days).map(Number) } },
  }[draft.cadence];
  return { calendar: { times_of_day: listOf(draft.times), cadence }, timezone: draft.timezone };
}

export function ScheduleFields({ draft, change }) {
  const set = (name) => (event) => change({ ...draft, [name]: event.target.value });
  const turn = (day) => {
    const weekdays = draft.weekdays.includes(day) ? draft.weekdays.filter((one) => one !== day) : [...draft.weekdays, day];
    change({ ...draft, weekdays });
  };
  return html`
    <div class="fields">
      <${Field} label="Runs">
        <select value=${draft.kind} onChange=${set("kind")}>
          <option value="rate">At a rate</option><option value="calendar">By the calendar</option><option value="cron">By cron</option><option value="at">Once</option>
        </select>
      <//>
      ${draft.kind === "rate" && html`
        <${Field} label="Every"><input type="number" min="1" required value=${draft.every} onInput=${set("every")} /><//>
        <${Field} label="Unit">
          <select value=${draft.unit} onChange=${set("unit")}><option value="minute">minutes</option><option value="hour">hours</option><option value="day">days</option></select>
        <//>`}
      ${draft.kind === "at" && html`<${Field} label="Local time"><input type="datetime-local" step="1" required value=${draft.at.slice(0, "2026-12-01T06:00:00".length)} onInput=${set("at")} /><//>`}
      ${draft.kind === "cron" && html`<${Field} label="Cron line" hint="Minute, hour, day, month, day of the week"><input required value=${draft.cron} onInput=${set("cron")} /><//>`}
      ${draft.kind === "calendar" && html`
        <${Field} label="Times of day" hint="Full hours, with commas"><input required value=${draft.times} onInput=${set("times")} /><//>
        <${Field} label="Days">
          <select value=${draft.cadence} onChange=${set("cadence")}><option value="daily">Every day</option><option value="weekly">Days of the week</option><option value="monthly">Days of the month</option></select>
        <//>
        ${draft.cadence === "monthly" && html`<${Field} label="Days of the month"><input required value=${draft.days} onInput=${set("days")} /><//>`}`}
      ${draft.kind !== "rate" && html`
        <${Field} label="Time zone"><input required list="time-zones" value=${draft.timezone} onInput=${set("timezone")} /><//>
        <datalist id="time-zones">${ZONES.map((zone) => html`<option value=${zone} />`)}</datalist>`}
    </div>
    ${draft.kind === "calendar" && draft.cadence === "weekly" && html`
      <fieldset class="weekdays"><legend>On</legend>
        ${DAYS.map((day) => html`<label><input type="checkbox" checked=${draft.weekdays.includes(day)} onChange=${() => turn(day)} /> ${words(day)}</label>`)}
      </fieldset>`}`;
}
