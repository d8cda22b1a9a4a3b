// Throughput and failures of a run: its timeline, and what this tab has seen of a live run since.

import { html, useEffect, useRef } from "./preact.js";
import { rate } from "./format.js";

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dated = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const DAY = 86_400;

/** A time on the axis of a plot, with its day if the plot has several. */
function timeOf(seconds, plot) {
  if (seconds == null) return "–";
  const { min, max } = plot.scales.x;
  return (max - min > DAY ? dated : clock).format(seconds * 1000);
}

const LONGEST = 3600; // samples of a run
const samplesOf = new Map();

/** Note the state of a run as a sample: time, rate, and failures per second. */
export function noteSample(progress) {
  const now = Date.now() / 1000;
  const { stats, run_id: run } = progress;
  if (!samplesOf.has(run)) samplesOf.set(run, { times: [], rates: [], failures: [], last: null, taken: 0 });
  const samples = samplesOf.get(run);
  const { last } = samples;
  if (last && now - last.now < 0.5) return;
  if (last) {
    const seconds = now - last.now;
    samples.taken += 1;
    samples.times.push(now);
    samples.rates.push(Math.max(stats.completed - last.completed, 0) / seconds);
    samples.failures.push(Math.max(stats.failed - last.failed, 0) / seconds);
    for (const one of [samples.times, samples.rates, samples.failures]) {
      if (one.length > LONGEST) one.shift();
    }
  }
  samples.last = { now, completed: stats.completed, failed: stats.failed };
}

export const samples = (run) => samplesOf.get(run);

/** How often the timeline of a run is to be loaded: again before its samples no longer reach back to it. */
export const generation = (run) => Math.floor((samplesOf.get(run)?.taken || 0) / (LONGEST - 60));

/**
 * The points of a timeline, if it could be loaded. If the run was live then, the samples follow that
 * were taken since (`at`); a run that had ended has no others. They continue at the end of the
 * timeline, whose clock is the service's: that of the browser may differ.
 */
export function plotted(loaded, seen, ended) {
  const points = loaded ? pointsOf(loaded.timeline, loaded.live) : [];
  const { live = true, timeline, at: since = -Infinity } = loaded || {};
  const shift = timeline?.until ? secondsOf(timeline.until) - since : 0;
  if (live) seen?.times.forEach((time, at) => {
    if (time > since) points.push([time + shift, seen.rates[at], seen.failures[at]]);
  });
  // A run may end, or be stopped, long after its last task.
  if (!live && points.length && secondsOf(ended) > points.at(-1)[0]) points.push([secondsOf(ended), 0, 0]);
  const [times, rates, failures] = [0, 1, 2].map((column) => points.map((point) => point[column]));
  return { times, rates, failures };
}

const secondsOf = (text) => new Date(text) / 1000;

/** A point in the middle of each interval, with none before the first or after the end of the run. */
function pointsOf({ intervals, interval_seconds: length, until }, isLive) {
  if (!intervals.length) return [];
  const points = [[secondsOf(intervals[0].started_at), 0, 0]];
  for (const { started_at, successful, failed } of intervals) {
    const begin = secondsOf(started_at);
    // The last interval of a live run is not over. A short part of it says little about the rate.
    const seconds = isLive ? Math.min(secondsOf(until) - begin, length) : length;
    if (seconds < length / 2) continue;
    points.push([begin + seconds / 2, (successful + failed) / seconds, failed / seconds]);
  }
  if (!isLive) points.push([secondsOf(intervals.at(-1).started_at) + length, 0, 0]);
  return points;
}

export function Plot({ data, version }) {
  const place = useRef();
  const plot = useRef();
  const current = useRef();
  current.current = rows(data);
  useEffect(() => {
    let gone = false;
    let observer;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const draw = async () => {
      const { default: UPlot } = await import("./vendor/uplot.js");
      if (gone) return;
      plot.current?.destroy();
      plot.current = new UPlot(options(place.current.clientWidth), current.current, place.current);
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
  useEffect(() => plot.current?.setData(current.current), [version]);
  return html`<div class="plot" ref=${place} role="img" aria-label=${`Tasks done and failed over time, at most ${rate(Math.max(...data.rates))}`}></div>`;
}

const rows = (data) => [data.times, data.rates, data.failures];

/** The legend shows what the pointer is at, or else the latest sample. */
const latest = (shown) => (plot, value, series, index) => shown(index == null ? plot.data[series].at(-1) : value, plot);

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
      { ...axis, space: 90, size: 32, values: (plot, values) => values.map((value) => timeOf(value, plot)) },
      { ...axis, size: 56, values: (_, values) => values.map((value) => rate(value)) },
    ],
    series: [
      { label: "Time", value: latest(timeOf) },
      line("Done", "--accent", "--accent-faint"),
      line("Failed", "--bad"),
    ],
  };
}
