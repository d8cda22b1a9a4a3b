// Figures and times as people read them.

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const count = (value) => whole.format(value);
export const short = (value) => (value < 10_000 ? whole.format(value) : compact.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function percent(part, of) {
  if (!of) return "0 %";
  const share = (100 * part) / of;
  if (part && share < 0.1) return "< 0.1 %";
  if (part < of && share > 99.9) return "99.9 %";
  return `${share < 10 || share > 99 ? +share.toFixed(1) : Math.round(share)} %`;
}

const dollarsAndCents = new Intl.NumberFormat("en", { style: "currency", currency: "USD" });

export function money(dollars) {
  if (!dollars) return "$0";
  return dollars < 0.01 ? `$${dollars.toPrecision(2)}` : dollarsAndCents.format(dollars);
}

export function rate(perSecond) {
  if (perSecond == null) return "–";
  if (perSecond && perSecond < 1) return `${+(perSecond * 60).toFixed(1)}/min`;
  return `${perSecond < 10 ? +perSecond.toFixed(1) : count(Math.round(perSecond))}/s`;
}

export function bytes(size) {
  if (size == null) return "–";
  if (size < 1000) return `${size} B`;
  const power = Math.min(Math.floor(Math.log10(size) / 3), 4);
  return `${+(size / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

/** A duration by its two largest units. */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return seconds > 0 ? `${Math.round(seconds * 1000)} ms` : "0 s";
  const from = UNITS.findIndex(([, size]) => seconds >= size);
  const [name, size] = UNITS[from];
  const rest = UNITS[from + 1] && Math.floor((seconds % size) / UNITS[from + 1][1]);
  const first = `${Math.floor(seconds / size)} ${name}`;
  return rest ? `${first} ${rest} ${UNITS[from + 1][0]}` : first;
}

export const millis = (value) => (value == null ? "–" : duration(value / 1000));

export const at = (text) => (text ? moment.format(new Date(text)) : "–");

/** How long ago or how far ahead a time is. */
export function relative(text, now = Date.now()) {
  if (!text) return "–";
  const seconds = (now - new Date(text)) / 1000;
  if (Math.abs(seconds) < 5) return "just now";
  const [name, size] = UNITS.find(([, one]) => Math.abs(seconds) >= one) || UNITS[3];
  const amount = `${Math.floor(Math.abs(seconds) / size)} ${name}`;
  return seconds < 0 ? `in ${amount}` : `${amount} ago`;
}

/** A name of the API (`gateway_error`) as words. */
export function words(name) {
  const text = String(name || "").replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const FORMATS = { html: "HTML", json: "JSON", pdf: "PDF", plaintext: "Text" };
export const format = (name) => FORMATS[name] || words(name);

/** The title of an error, without its code, which is shown beside it. */
export const titleOf = ({ title = "", code }) => title.replace(` (${code})`, "");

/** The title and the detail of an error; a detail that repeats the title stands for both. */
export function titleAndDetail(error) {
  const [title, detail] = [titleOf(error), error.detail || ""];
  return detail.startsWith(title) ? [detail, ""] : [title, detail];
}

/** A URL as it may be linked: a scheme other than http(s) could run code. */
export const href = (url) => (/^https?:\/\//i.test(url || "") ? url : undefined);

/** A schedule as a sentence. */
export function schedule(value) {
  if (!value) return "";
  if (value.at) return `Once, ${value.at.replace("T", " ")} ${value.timezone}`;
  if (value.rate) return `Every ${value.rate.every === 1 ? "" : `${value.rate.every} `}${value.rate.unit}${value.rate.every === 1 ? "" : "s"}`;
  if (value.cron) return `By cron: ${value.cron} ${value.timezone}`;
  const { times_of_day: times, cadence } = value.calendar;
  const days = cadence.weekly
    ? `on ${cadence.weekly.days.map(words).join(", ")}`
    : cadence.monthly
      ? `on day ${cadence.monthly.days.join(", ")} of the month`
      : "every day";
  return `${words(days)} at ${times.join(", ")} ${value.timezone}`;
}
