// Throughput and failures of a run, as seen by this tab. The API keeps no history of rates, so the
// plot begins when the page is opened; it is kept while the tab stays open.

import { html, useEffect, useRef } from "./preact.js";
import { rate } from "./format.js";

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const timeOf = (seconds) => (seconds == null ? "–" : clock.format(seconds * 1000));

const LONGEST = 3600; // samples of a run
const samplesOf = new Map();

/** Note the state of a run; return its samples: times, rates, and failures per second. */
export function noteSample(progress) {
  const now = Date.now() / 1000;
  const { stats, run_id: run } = progress;
  if (!samplesOf.has(run)) samplesOf.set(run, { times: [], rates: [], failures: [], last: null });
  const samples = samplesOf.get(run);
  const { last } = samples;
  if (last && now - last.now < 0.5) return samples;
  if (last) {
    const seconds = now - last.now;
    samples.times.push(now);
    samples.rates.push(Math.max(stats.completed - last.completed, 0) / seconds);
    samples.failures.push(Math.max(stats.failed - last.failed, 0) / seconds);
    for (const one of [samples.times, samples.rates, samples.failures]) {
      if (one.length > LONGEST) one.shift();
    }
  }
  samples.last = { now, completed: stats.completed, failed: stats.failed };
  return samples;
}

export const samples = (run) => samplesOf.get(run);

export function Plot({ data, version }) {
  const place = useRef();
  const plot = useRef();
  useEffect(() => {
    let gone = false;
    let observer;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const draw = async () => {
      const { default: UPlot } = await import("./vendor/uplot.js");
      if (gone) return;
      plot.current?.destroy();
      plot.current = new UPlot(options(place.current.clientWidth), rows(data), place.current);
    };
    draw();
    dark.addEventListener("change", draw);
    observer = new ResizeObserver(() =>
      plot.current?.setSize({ width: place.current.clientWidth, height: 200 }),
    );
    observer.observe(place.current);
    return () => {
      gone = true;
      dark.removeEventListener("change", draw);
      observer.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(rows(data)), [version]);
  return html`<div class="plot" ref=${place} role="img" aria-label="Tasks done and failed per second over time"></div>`;
}

const rows = (data) => [data.times, data.rates, data.failures];

/** The legend shows what the pointer is at, or else the latest sample. */
const latest = (shown) => (plot, value, series, index) => shown(index == null ? plot.data[series].at(-1) : value);

function options(width) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: color("--muted"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  const line = (label, name, fill) => ({
    label,
    stroke: color(name),
    fill: fill && color(fill),
    width: 2,
    points: { show: false },
    value: latest(rate),
  });
  return {
    width,
    height: 200,
    padding: [12, 8, 0, 0],
    legend: { show: true, live: true },
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [
      { ...axis, space: 90, size: 32, values: (_, values) => values.map(timeOf) },
      { ...axis, size: 56, values: (_, values) => values.map(rate) },
    ],
    series: [
      { label: "Time", value: latest(timeOf) },
      line("Done", "--accent", "--accent-faint"),
      line("Failed", "--bad"),
    ],
  };
}
