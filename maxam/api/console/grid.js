/**
 * The grid of live topics. It has rows only for the topics on the screen, and uses them again as it scrolls. Names that were scrolled
 * past stay known (a list of texts). Values come for the visible window.
 */

import { get, path, Problem } from "./api.js";
import { bars } from "./chart.js";
import { Digest } from "./digest.js";
import { add, el, fill, noRoom, put, svg } from "./dom.js";
import { link } from "./link.js";
import { Live } from "./live.js";
import { age, byBytes, compact, count, leaves, plural, shown, shownShort, time } from "./text.js";

/** @typedef {import("./live.js").TopicRow} TopicRow */

const OVERSCAN = 6; // rows outside the screen that are kept live, so that a small step shows values at once
const WINDOW_MAX = 120;
const KNOWN_MAX = 400; // rows whose values are kept; more than two windows
const PAGE = 200;
const SETTLE_MS = 90; // of scrolling, before another window is asked for
const EVERY_MS = 500;
const AGES_EVERY_MS = 200;
const SPARK_EVERY_MS = 2000;
const SPARK_PLACES = 20;
const FIELDS_MAX = 8;

/**
 * The known state of a topic on or near the screen.
 * @typedef {object} Known
 * @property {TopicRow} row
 * @property {number} at_ms when its age was received, by the page's clock
 * @property {number} counted updates that are in `spark`
 * @property {number} changes that came, where the gateway does not count
 * @property {number[]} spark updates of the last intervals
 * @property {Map<string, unknown> | null} fields of its value, once asked for
 */

/**
 * One row element and its present content, so that only differences are written.
 * @typedef {object} Line
 * @property {HTMLElement} element
 * @property {Record<"name" | "value" | "age" | "revision" | "publisher" | "schema", HTMLElement>} cells
 * @property {HTMLElement} fields
 * @property {SVGElement} spark
 * @property {string} drawn path of the sparkline
 * @property {number} at index that it shows, or -1
 * @property {number} revision that it shows
 * @property {string} destination that it shows
 * @property {string} age
 */

export class Grid {
  /** @type {string[]} in byte order, from the beginning without gaps */
  #names = [];
  /** @type {Map<string, Known>} */
  #known = new Map();
  /** @type {Map<string, string>} topics of the window that are not known to be current, and since when */
  #unknown = new Map();
  #digest = new Digest();
  /** @type {Line[]} */
  #lines = [];
  #glob = "**";
  #pii = false;
  #more = true;
  #complete = false;
  /** @type {number | null} */
  #count = null;
  #countComplete = false;
  #windowFrom = 0;
  #windowRows = 0;
  #rowHeight = 34;
  #first = 0;
  #selected = "";
  #frame = 0;
  /** @type {number | undefined} */
  #settle;
  /** @type {AbortController | null} */
  #page = null;
  #stopped = new AbortController();
  /** @type {string[]} */
  #fields = [];
  #timers = /** @type {number[]} */ ([]);
  #hidden = el("div", { class: "measure", "aria-hidden": "true" });

  /**
   * @param {{open: (destination: string) => void, status: () => void, refused: (problem: Problem | null) => void, changed: (row: TopicRow) => void}} told
   */
  constructor(told) {
    this.told = told;
    this.live = new Live({
      rows: (rows, window) => this.#onRows(rows, window),
      changes: (changes) => this.#onChanges(changes.rows),
      count: (counted) => {
        this.#count = counted.count;
        this.#countComplete = counted.count_complete;
        this.told.status();
      },
      unknown: (since) => {
        this.#unknown = new Map(Object.entries(since));
        this.#ages();
      },
      refused: (problem) => this.#onRefused(problem),
    });
    this.head = el("div", { class: "line head", role: "row" });
    this.space = el("div", { class: "space", role: "rowgroup" });
    this.scroller = el(
      "div",
      { class: "scroller", role: "grid", tabindex: 0, "aria-label": "Topics", "aria-describedby": "grid-keys", "aria-readonly": "true" },
      el("div", { role: "rowgroup", class: "heads" }, this.head),
      this.space,
      this.#hidden,
    );
    this.element = el("div", { class: "grid" }, this.scroller);
    this.noRoom = noRoom(this.scroller, () => [...this.head.children].filter((head) => head.className !== "value")); // a value always has room
    const signal = this.#stopped.signal;
    this.scroller.addEventListener("scroll", () => this.#draw(), { passive: true, signal });
    this.scroller.addEventListener("keydown", (event) => this.#key(event), { signal });
    this.space.addEventListener("click", (event) => this.#click(event), { signal });
    this.#sizes = new ResizeObserver(() => this.#measure());
    this.#sizes.observe(this.scroller);
    link.addEventListener("change", () => this.#ages(), { signal });
    this.#timers.push(setInterval(() => this.#ages(), AGES_EVERY_MS), setInterval(() => this.#sparks(), SPARK_EVERY_MS));
    this.#heads();
  }

  #sizes;

  stop() {
    this.live.stop();
    this.#stopped.abort();
    this.#page?.abort();
    this.#sizes.disconnect();
    for (const timer of this.#timers) clearInterval(timer);
    clearTimeout(this.#settle);
    cancelAnimationFrame(this.#frame);
  }

  /**
   * Show the topics of a glob, from the first one.
   * @param {string} glob
   * @param {boolean} pii whether fields marked personal are shown, which the gateway's audit log then records
   */
  look(glob, pii) {
    this.#glob = glob;
    this.#pii = pii;
    delete this.element.dataset.shows;
    this.#names = [];
    this.#known.clear();
    this.#unknown.clear();
    this.#more = true;
    this.#complete = false;
    this.#count = null;
    this.#countComplete = false;
    this.#selected = "";
    this.#page?.abort();
    this.#page = null;
    this.scroller.scrollTop = 0;
    this.#windowFrom = 0;
    this.#measure();
    this.#request(0);
    this.#draw();
    this.told.status();
  }

  /** @param {string[]} paths fields of values that have a column each. Without any, the whole value is in one */
  columns(paths) {
    this.#fields = paths.slice(0, FIELDS_MAX);
    this.#heads();
    for (const line of this.#lines) line.at = -1;
    this.#draw();
  }

  /** Paths of the fields of the values on the screen. */
  paths() {
    const all = new Set();
    for (const line of this.#lines.slice(0, 40)) {
      const known = this.#known.get(line.destination);
      if (known?.row.value_state === "decoded") for (const name of leaves(known.row.value, 60).keys()) all.add(name);
    }
    return /** @type {string[]} */ ([...all].slice(0, 60));
  }

  /** @returns {string} what is on the screen of how many */
  get said() {
    if (this.#names.length === 0) return this.#complete ? "no topics" : "looking …";
    const rows = Math.max(1, Math.floor((this.scroller.clientHeight - this.head.offsetHeight) / this.#rowHeight));
    const last = Math.min(this.#names.length, this.#first + rows);
    const total = this.#count === null ? (this.#more ? `at least ${count(this.#names.length)}` : count(this.#names.length)) : (this.#countComplete ? "" : "at least ") + count(this.#count);
    return `${count(this.#first + 1)}–${count(last)} of ${total}`;
  }

  /**
   * The state of a topic from the stream, or undefined when it is not near the screen.
   * @param {string} destination
   */
  row(destination) {
    return this.#known.get(destination)?.row;
  }

  get empty() {
    return this.#names.length === 0 && this.#complete;
  }

  /** @param {string} destination */
  select(destination) {
    this.#selected = destination;
    this.#draw();
  }

  focus() {
    this.scroller.focus();
  }

  // Events of the stream.

  /** @param {import("./live.js").Rows} rows @param {import("./live.js").Window} window */
  #onRows(rows, window) {
    if (window.glob !== this.#glob) return;
    this.told.refused(null);
    const shownFirst = this.#names[this.#first];
    const names = this.#names;
    const from = window.after === null ? 0 : lowerBound(names, window.after, true);
    const lastName = rows.destinations[rows.destinations.length - 1];
    // The window has all topics between its beginning and its last one. Without more after it, it has all the rest.
    const end = rows.more || !rows.complete ? (lastName === undefined ? from : lowerBound(names, lastName, true)) : names.length;
    names.splice(from, end - from, ...rows.destinations);
    if (!rows.more && rows.complete) this.#more = false;
    this.#complete = rows.complete;
    if (rows.complete) this.element.dataset.shows = String(new URLSearchParams({ glob: window.glob }));
    this.#windowFrom = from;
    for (const row of rows.rows) this.#learn(row);
    this.#forget();
    if (shownFirst !== undefined && this.#first > 0) {
      const moved = lowerBound(names, shownFirst, false) - this.#first;
      if (moved !== 0 && Math.abs(moved) < PAGE) {
        this.#stretch();
        this.scroller.scrollTop += moved * this.#rowHeight;
      }
    }
    for (const line of this.#lines) line.at = -1;
    this.#draw();
    this.told.status();
  }

  /** @param {TopicRow[]} rows */
  #onChanges(rows) {
    for (const row of rows) {
      this.#learn(row);
      const line = this.#lines.find((one) => one.destination === row.destination && one.at >= 0);
      if (line) this.#write(line, true);
    }
  }

  /** @param {TopicRow} row */
  #learn(row) {
    const before = this.#known.get(row.destination);
    const valueBefore = before?.row.value_state === "decoded" ? before.row.value : undefined;
    const merged = row.value_state === undefined && before ? Object.assign(before.row, row) : row;
    if (merged.value_state === "decoded" && "value" in row) this.#digest.learn(`${merged.schema} ${merged.schema_version}`, valueBefore, merged.value);
    const updates = merged.updates ?? (before ? before.changes + 1 : 0);
    const known = before ?? { row: merged, at_ms: 0, counted: updates, changes: 0, spark: [], fields: null };
    known.row = merged;
    known.at_ms = performance.now();
    known.changes += before ? 1 : 0;
    known.fields = null;
    this.#known.delete(row.destination); // the newest last, so that the oldest can be dropped
    this.#known.set(row.destination, known);
    this.told.changed(merged);
  }

  #forget() {
    for (const name of this.#known.keys()) {
      if (this.#known.size <= KNOWN_MAX) return;
      this.#known.delete(name);
    }
  }

  /** @param {Problem} problem */
  #onRefused(problem) {
    this.told.refused(problem);
    if (problem.status === 429 || problem.status === 503) {
      clearTimeout(this.#settle);
      this.#settle = setTimeout(() => this.#request(this.#windowFrom), 3000);
    }
  }

  // Requests.

  /** @param {number} from index of the window's first topic */
  #request(from) {
    this.#windowFrom = from;
    this.#windowRows = Math.min(WINDOW_MAX, this.#perScreen() + 2 * OVERSCAN);
    this.live.look({
      glob: this.#glob,
      after: from === 0 ? null : (this.#names[from - 1] ?? null),
      rows: this.#windowRows,
      every_ms: EVERY_MS,
      pii: this.#pii,
    });
  }

  #perScreen() {
    return Math.max(4, Math.ceil(this.scroller.clientHeight / this.#rowHeight));
  }

  #follow() {
    const first = this.#first;
    const last = first + this.#perScreen();
    const covered = first >= this.#windowFrom && (last <= this.#windowFrom + this.#windowRows || this.#windowFrom + this.#windowRows >= this.#names.length);
    if (!covered) {
      clearTimeout(this.#settle);
      this.#settle = setTimeout(() => this.#request(Math.max(0, this.#first - OVERSCAN)), SETTLE_MS);
    }
    if (this.#more && last + PAGE / 2 > this.#names.length && this.#names.length > 0) void this.#readOn();
  }

  /** Learn the names after the known ones: metadata only, a page at a time. */
  async #readOn() {
    if (this.#page || !link.asking) return;
    const turn = new AbortController();
    this.#page = turn;
    const after = this.#names[this.#names.length - 1];
    try {
      const page = await get(path(["v1", "topics"], { glob: this.#glob, after, limit: PAGE }), turn.signal);
      if (turn.signal.aborted) return;
      const behind = this.#names[this.#names.length - 1];
      for (const row of page.topics) if (behind === undefined || byBytes(row.destination, behind) > 0) this.#names.push(row.destination);
      this.#more = page.next !== null;
    } catch (error) {
      if (turn.signal.aborted) return;
      link.failed(error);
    } finally {
      if (this.#page === turn) this.#page = null;
    }
    this.#draw();
    this.told.status();
  }

  // Drawing.

  #heads() {
    const titles = this.#fields.length ? el("span", { class: "fields", role: "columnheader" }, this.#fields.map((name) => el("span", { title: shown(name) }, shown(name)))) : el("span", { class: "value", role: "columnheader" }, "Value");
    fill(
      this.head,
      el("span", { class: "name", role: "columnheader" }, "Destination"),
      titles,
      el("span", { class: "age", role: "columnheader" }, "Age"),
      el("span", { class: "spark", role: "columnheader" }, "Updates"),
      el("span", { class: "publisher", role: "columnheader" }, "Publisher"),
      el("span", { class: "schema", role: "columnheader" }, "Schema"),
      el("span", { class: "revision", role: "columnheader" }, "Revision"),
    );
    this.element.style.setProperty("--fields", String(Math.max(1, this.#fields.length)));
    this.element.classList.toggle("by-fields", this.#fields.length > 0);
  }

  #measure() {
    if (!this.#hidden.firstChild) add(this.#hidden, el("div", { class: "line" }, "x"));
    this.#rowHeight = Math.max(20, /** @type {HTMLElement} */ (this.#hidden.firstChild).offsetHeight);
    const wanted = this.#perScreen() + 2;
    while (this.#lines.length < wanted) this.#lines.push(this.#makeLine());
    for (const line of this.#lines.splice(wanted)) line.element.remove();
    for (const line of this.#lines) line.at = -1;
    this.#draw();
  }

  /** @returns {Line} */
  #makeLine() {
    /** @param {string} name */
    const cell = (name) => el("span", { class: `${name} client`, role: "gridcell" });
    const cells = { name: cell("name"), value: cell("value"), age: cell("age"), revision: cell("revision"), publisher: cell("publisher"), schema: cell("schema") };
    const fields = el("span", { class: "fields client", role: "gridcell" });
    const spark = svg("path", { d: "" });
    const image = svg("svg", { viewBox: "0 0 60 16", class: "sparkline", "aria-hidden": "true" });
    image.append(spark);
    const element = el("div", { class: "line", role: "row", id: `line-${this.#lines.length}`, hidden: true }, cells.name, cells.value, fields, cells.age);
    const holder = el("span", { class: "spark", role: "gridcell" });
    holder.append(image);
    add(element, holder, cells.publisher, cells.schema, cells.revision);
    this.space.append(element);
    return { element, cells, fields, spark, drawn: "", at: -1, revision: -1, destination: "", age: "" };
  }

  #draw() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#place();
    });
  }

  /** Make room for every known name. A browser clamps `scrollTop` to the height that the space has at that moment. */
  #stretch() {
    const height = `${this.#names.length * this.#rowHeight}px`;
    if (this.space.style.height !== height) this.space.style.height = height;
  }

  #place() {
    this.#stretch();
    const first = Math.max(0, Math.min(Math.floor(this.scroller.scrollTop / this.#rowHeight), this.#names.length - 1));
    const moved = first !== this.#first;
    this.#first = first;
    const lines = this.#lines;
    this.scroller.setAttribute("aria-rowcount", String((this.#countComplete && this.#count !== null ? this.#count : this.#more ? -2 : this.#names.length) + 1));
    let active = "";
    for (let offset = 0; offset < lines.length; offset++) {
      const at = first + offset;
      const line = lines[at % lines.length];
      if (!line) continue;
      const name = this.#names[at];
      if (name === undefined) {
        if (line.at !== -2) {
          line.element.hidden = true;
          line.at = -2;
          line.destination = "";
        }
        continue;
      }
      if (line.at !== at || line.destination !== name) {
        line.at = at;
        line.destination = name;
        line.element.hidden = false;
        line.element.style.transform = `translateY(${at * this.#rowHeight}px)`;
        line.element.setAttribute("aria-rowindex", String(at + 2));
        line.element.classList.toggle("odd", at % 2 === 1);
        put(line.cells.name, shownShort(name, 300));
        line.cells.name.title = shownShort(name, 600);
        this.#write(line, false);
      }
      const chosen = name === this.#selected;
      if (chosen) active = line.element.id;
      if (line.element.classList.contains("selected") !== chosen) {
        line.element.classList.toggle("selected", chosen);
        line.element.setAttribute("aria-selected", String(chosen));
      }
    }
    if (active) this.scroller.setAttribute("aria-activedescendant", active);
    else this.scroller.removeAttribute("aria-activedescendant");
    this.#follow();
    if (moved) this.told.status();
  }

  /**
   * Write what is known of a topic into its row.
   * @param {Line} line
   * @param {boolean} news whether it changed while it was on the screen
   */
  #write(line, news) {
    const known = this.#known.get(line.destination);
    line.element.classList.toggle("unknown", !known);
    const { cells } = line;
    if (!known) {
      for (const cell of [cells.value, cells.age, cells.revision, cells.publisher, cells.schema]) put(cell, "");
      if (this.#fields.length) fill(line.fields);
      this.#spark(line, "");
      line.age = "";
      line.revision = -1;
      return;
    }
    const { row } = known;
    if (this.#fields.length) this.#writeFields(line, known);
    else {
      put(cells.value, valueText(row, this.#digest));
      cells.value.classList.toggle("aside", row.value_state !== "decoded");
    }
    if (line.revision !== row.revision) {
      put(cells.revision, count(row.revision));
      put(cells.publisher, shownShort(row.publisher, 60));
      put(cells.schema, row.schema ? shownShort(`${row.schema} ${row.schema_version}`, 80) : "none");
      if (cells.schema.title !== cells.schema.textContent) cells.schema.title = cells.schema.textContent ?? "";
      if (news && line.revision > 0) line.element.dataset.flash = line.element.dataset.flash === "0" ? "1" : "0";
      else if (!news) delete line.element.dataset.flash;
      line.revision = row.revision;
    }
    this.#age(line, known, link.shownAt_ms);
    this.#spark(line, bars(known.spark, SPARK_PLACES));
  }

  /** @param {Line} line @param {Known} known */
  #writeFields(line, known) {
    known.fields ??= known.row.value_state === "decoded" ? leaves(known.row.value, 200) : new Map();
    while (line.fields.children.length > this.#fields.length) line.fields.lastChild?.remove();
    this.#fields.forEach((name, at) => {
      const cell = line.fields.children[at] ?? line.fields.appendChild(el("span"));
      const value = known.fields?.get(name);
      put(cell, value === undefined ? "" : typeof value === "string" ? shownShort(value, 80) : compact(value, 80));
    });
  }

  /** @param {Line} line @param {Known} known @param {number} now_ms */
  #age(line, known, now_ms) {
    const since = this.#unknown.get(line.destination);
    const cell = line.cells.age;
    const title = since === undefined ? known.row.accepted_at : `unknown since ${time(since)}, as its link is down; accepted at ${known.row.accepted_at}`;
    if (cell.title !== title) cell.title = title;
    const text = since === undefined ? age(known.row.age_s + Math.max(0, now_ms - known.at_ms) / 1000) : "unknown";
    if (text === line.age) return;
    line.age = text;
    cell.textContent = text;
    cell.classList.toggle("warn", since !== undefined);
  }

  /** @param {Line} line @param {string} drawn */
  #spark(line, drawn) {
    if (line.drawn === drawn) return;
    line.drawn = drawn;
    line.spark.setAttribute("d", drawn);
  }

  #ages() {
    if (document.hidden) return;
    const now_ms = link.shownAt_ms;
    for (const line of this.#lines) {
      const known = line.at >= 0 ? this.#known.get(line.destination) : undefined;
      if (known) this.#age(line, known, now_ms);
    }
  }

  #sparks() {
    if (link.state !== "live") return;
    for (const known of this.#known.values()) {
      const updates = known.row.updates ?? known.changes;
      known.spark.push(Math.max(0, updates - known.counted));
      if (known.spark.length > SPARK_PLACES) known.spark.shift();
      known.counted = updates;
    }
    for (const line of this.#lines) {
      const known = line.at >= 0 ? this.#known.get(line.destination) : undefined;
      if (known) this.#spark(line, bars(known.spark, SPARK_PLACES));
    }
  }

  // Actions of the operator.

  /** @param {MouseEvent} event */
  #click(event) {
    const element = /** @type {Element} */ (event.target).closest(".line");
    const line = this.#lines.find((one) => one.element === element);
    if (!line || line.at < 0) return;
    this.select(line.destination);
    this.told.open(line.destination);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.#names.length === 0) return;
    const screen = Math.max(1, Math.floor((this.scroller.clientHeight - this.head.offsetHeight) / this.#rowHeight) - 1);
    const now = this.#selected ? lowerBound(this.#names, this.#selected, false) : -1;
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + screen, PageUp: now - screen, Home: 0, End: this.#names.length - 1 };
    const wanted = steps[event.key];
    if (wanted !== undefined) {
      event.preventDefault();
      const at = Math.max(0, Math.min(wanted, this.#names.length - 1));
      this.#selected = this.#names[at] ?? "";
      this.#reveal(at);
    } else if (event.key === "Enter" && this.#selected) {
      event.preventDefault();
      this.told.open(this.#selected);
    }
  }

  /** @param {number} at */
  #reveal(at) {
    this.#stretch(); // names may have come since the last frame
    const top = at * this.#rowHeight;
    const room = this.scroller.clientHeight - this.head.offsetHeight;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.#rowHeight > this.scroller.scrollTop + room) this.scroller.scrollTop = top + this.#rowHeight - room;
    this.#draw();
  }
}

/** @param {TopicRow} row @param {Digest} digest */
function valueText(row, digest) {
  switch (row.value_state) {
    case "decoded":
      return (row.pii_masked ? "[personal fields hidden] " : "") + digest.text(`${row.schema} ${row.schema_version}`, row.value);
    case "raw":
      return `not decoded: ${shownShort(row.problem ?? "", 120)}`;
    case "undecoded":
      return `${plural(row.body_bytes, "byte")}, open it to see them: ${shownShort(row.problem ?? "", 120)}`;
    default:
      return "withheld: your principal may not receive it";
  }
}

/**
 * @param {string[]} names in byte order
 * @param {string} name
 * @param {boolean} behind the index after it, when it is there
 */
function lowerBound(names, name, behind) {
  let low = 0;
  let high = names.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const order = byBytes(names[middle] ?? "", name);
    if (order < 0 || (behind && order === 0)) low = middle + 1;
    else high = middle;
  }
  return low;
}
