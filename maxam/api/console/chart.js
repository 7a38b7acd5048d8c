/** Small charts, drawn with SVG: lines of history, and sparklines in a grid. */

import { add, el, fill, put, svg } from "./dom.js";
import { rate, time } from "./text.js";

const POINTS_MAX = 600;

/** One line over time with its own scale, its newest value in words, and what was when under the pointer. */
export class LineChart {
  /** @type {[number, number][]} milliseconds since the epoch, value */
  #points = [];
  #line = svg("path", { class: "line" });
  #area = svg("path", { class: "area" });
  #cursor = svg("path", { class: "cursor" });
  #now = el("span", { class: "figure" }, "–");
  #hint = el("span", { class: "hint" });
  #top = el("span", { class: "top" });
  #from = el("span");
  #to = el("span");

  /**
   * @param {string} title
   * @param {string} unit
   * @param {string} series for its colour
   */
  constructor(title, unit, series) {
    this.title = title;
    this.unit = unit;
    this.image = svg("svg", { viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: no figures yet` });
    this.image.append(svg("path", { class: "rule", d: "M0 119.5H600M0 60H600M0 .5H600" }), this.#area, this.#line, this.#cursor);
    this.image.addEventListener("pointermove", (event) => this.#point(event));
    this.image.addEventListener("pointerleave", () => this.#point(null));
    this.element = el(
      "figure",
      { class: `chart ${series}` },
      el("figcaption", null, el("span", { class: "name" }, title), this.#now, el("span", { class: "unit" }, unit)),
      el("div", { class: "plot" }, this.image, this.#top),
      el("div", { class: "axis" }, this.#from, this.#hint, this.#to),
    );
  }

  /** @param {[number, number][]} points in order of time */
  show(points) {
    this.#points = points.slice(-POINTS_MAX);
    const first = this.#points[0];
    const last = this.#points[this.#points.length - 1];
    if (!first || !last) return;
    const top = nice(Math.max(...this.#points.map((point) => point[1])));
    const span = Math.max(1, last[0] - first[0]);
    const at = this.#points.map(([x, y]) => `${(((x - first[0]) / span) * 600).toFixed(1)} ${(119 - (y / top) * 116).toFixed(1)}`);
    const line = "M" + at.join("L");
    this.#line.setAttribute("d", line);
    this.#area.setAttribute("d", `${line}L600 120L0 120Z`);
    put(this.#now, rate(last[1]));
    put(this.#top, rate(top));
    put(this.#from, time(first[0]));
    put(this.#to, time(last[0]));
    const values = this.#points.map((point) => point[1]);
    const said = `${this.title}: now ${rate(last[1])} ${this.unit}; since ${time(first[0])} between ${rate(Math.min(...values))} and ${rate(Math.max(...values))}`;
    this.image.setAttribute("aria-label", said);
  }

  /** @param {PointerEvent | null} event */
  #point(event) {
    const first = this.#points[0];
    const last = this.#points[this.#points.length - 1];
    if (!event || !first || !last) {
      this.#cursor.setAttribute("d", "");
      put(this.#hint, "");
      return;
    }
    const box = this.image.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const wanted = first[0] + share * (last[0] - first[0]);
    const near = this.#points.reduce((best, point) => (Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best));
    const x = ((near[0] - first[0]) / Math.max(1, last[0] - first[0])) * 600;
    this.#cursor.setAttribute("d", `M${x.toFixed(1)} 0V120`);
    put(this.#hint, `${time(near[0])}: ${rate(near[1])}`);
  }
}

/**
 * The next round number, so that the scale does not move with every point.
 * @param {number} value
 */
function nice(value) {
  if (!(value > 0)) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 5, 10]) if (value <= factor * step) return factor * step;
  return value;
}

/**
 * The path of a sparkline, 60 by 16: bars, as updates are counted, not measured. The newest stands at the right.
 * @param {readonly number[]} counts
 * @param {number} most how many places there are
 */
export function bars(counts, most) {
  const top = Math.max(1, ...counts);
  const step = 60 / most;
  let drawn = "M0 15.5H60";
  counts.forEach((one, at) => {
    if (one > 0) drawn += `M${((most - counts.length + at + 0.5) * step).toFixed(1)} 15V${(15 - Math.max(1.5, (one / top) * 14)).toFixed(1)}`;
  });
  return drawn;
}

/**
 * A bar with its meaning in words beside it.
 * @param {number} share 0 to 1
 * @param {"ok" | "warn" | "bad"} state
 * @param {string} text
 */
export function meter(share, state, text) {
  const inner = el("span", { class: "fill" });
  inner.style.width = `${Math.round(Math.min(1, Math.max(0, share)) * 100)}%`;
  return el("span", { class: `meter ${state}` }, el("span", { class: "track", "aria-hidden": "true" }, inner), el("span", { class: "said" }, text));
}

/** @param {Element} parent @param {[string, Node | string | null][]} pairs */
export function facts(parent, pairs) {
  fill(parent);
  for (const [name, value] of pairs) if (value !== null) add(parent, el("dt", null, name), el("dd", null, value));
}
