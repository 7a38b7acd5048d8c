/**
 * A view of a listing of the API: it polls the first pages, as far as the operator asked for more, and shows a summary.
 */

import { refusal } from "./dialogs.js";
import { add, badge, el, fill } from "./dom.js";
import { get, path } from "./api.js";
import { Poll } from "./link.js";
import { Table } from "./table.js";
import { count, plural } from "./text.js";

const PAGE = 100;
const REST_MS = 70; // of typing, before a filter is asked for
const PAGES_MAX = 10; // of 100 rows: more is for filters, and for maxam-admin

/**
 * @template R
 * @typedef {object} ListingOptions
 * @property {string} route such as `sessions`, below /v1
 * @property {string} rows name of the list in the answer
 * @property {() => Record<string, string | number | null | undefined>} [query]
 * @property {number} every_ms
 * @property {import("./table.js").TableOptions<R>} table
 * @property {(answer: any, rows: R[]) => Node | string | null} [summary]
 * @property {() => Node} empty
 * @property {boolean} [single] the route has no pages
 * @property {(signal: AbortSignal) => Promise<Loaded<R>>} [load] reads the rows in another way than page by page
 * @property {(problem: import("./api.js").Problem) => Node} [refused] the element for a refusal
 */

/**
 * @template R
 * @typedef {object} Loaded
 * @property {any} answer the first page
 * @property {R[]} rows
 * @property {boolean} more whether the gateway has further rows
 * @property {boolean} incomplete whether a front of the gateway did not answer
 */

/**
 * Shows a listing. `data-shows` of its element is the query that its rows answer.
 * @template R
 */
export class Listing {
  #pages = 1;
  #more = el("button", { type: "button", class: "quiet", click: () => this.#readMore() }, "Show more");
  #foot = el("p", { class: "foot" });
  #waits = el("span", { class: "waits", role: "status" });

  /** @param {ListingOptions<R>} options */
  constructor(options) {
    this.options = options;
    this.table = new Table({ ...options.table, held: (waiting) => this.#held(waiting) });
    this.summary = el("p", { class: "summary", role: "status" });
    this.place = el("div", { class: "place" }, el("p", { class: "loading" }, "Asking the gateway …"));
    this.element = el("div", { class: "listing" }, el("div", { class: "over" }, this.summary, this.#waits, this.table.noRoom), this.place, this.#foot);
    this.poll = new Poll(
      async (signal) => {
        const shows = asked(options.query?.() ?? {});
        return { shows, ...(await (options.load ?? ((given) => this.#load(given)))(signal)) };
      },
      options.every_ms,
      ({ shows, answer, rows, more, incomplete }) => {
        this.#show(answer, rows, more, incomplete);
        this.element.dataset.shows = shows;
      },
      (problem) => {
        fill(this.place, (options.refused ?? refusal)(problem));
        fill(this.summary);
        fill(this.#foot);
      },
    );
  }

  stop() {
    this.poll.stop();
  }

  /** Ask again from the first page, as with another filter. */
  restart() {
    this.#pages = 1;
    this.refresh();
  }

  /** Ask again, and let rows come, go and move wherever the pointer is: the operator wants to see what changed. */
  refresh() {
    this.table.release();
    this.poll.again();
  }

  /** @param {number} waiting rows that are not shown while the pointer is on the table */
  #held(waiting) {
    this.#waits.textContent = waiting ? `${plural(waiting, "further row")} will show when the pointer leaves the table.` : ""; // beside the summary, so that nothing moves
  }

  /** @param {AbortSignal} signal @returns {Promise<Loaded<R>>} */
  async #load(signal) {
    /** @type {R[]} */
    const rows = [];
    let answer = null;
    let after = null;
    let incomplete = false; // a front of the gateway did not answer
    for (let page = 0; page < this.#pages; page++) {
      const query = this.options.single ? {} : { after, limit: PAGE };
      const next = await get(path(["v1", ...this.options.route.split("/")], { ...this.options.query?.(), ...query }), signal);
      answer ??= next;
      rows.push(...next[this.options.rows]);
      incomplete ||= next.incomplete === true;
      after = next.next ?? null;
      if (after === null) break;
      if (next[this.options.rows].length < PAGE && page === this.#pages - 1 && rows.length < PAGE && page < PAGES_MAX) this.#pages += 1; // a page may be short
    }
    return { answer, rows, more: after !== null, incomplete };
  }

  /** @param {any} answer @param {R[]} rows @param {boolean} more @param {boolean} incomplete */
  #show(answer, rows, more, incomplete) {
    if (rows.length) {
      if (this.place.firstChild !== this.table.element) fill(this.place, this.table.element);
      this.table.show(rows);
    } else {
      this.table.show([]);
      fill(this.place, this.options.empty());
    }
    const said = this.options.summary?.(answer, rows) ?? null;
    const before = this.summary.textContent;
    const holder = el("span", null, said, incomplete && " ", incomplete && badge("warn", "incomplete: a front of the gateway did not answer"));
    if (before !== holder.textContent) fill(this.summary, holder); // read out only when it has changed
    fill(this.#foot);
    if (!more) return;
    const sorts = this.options.table.columns.some((column) => column.sort) ? " A column sorts only these." : "";
    add(this.#foot, `The first ${count(rows.length)} are shown.${sorts} `, this.#pages < PAGES_MAX ? this.#more : "Narrow them by the filter, or use maxam-admin for all.");
  }

  #readMore() {
    this.#pages = Math.min(PAGES_MAX, this.#pages + 2);
    this.poll.again();
  }
}

/** @param {Record<string, string | number | null | undefined>} query */
function asked(query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return String(new URLSearchParams(given.map(([name, value]) => [name, String(value)])));
}

/**
 * A box for a filter. `changed` is called when the typing rests.
 * @param {{label: string, placeholder: string, value: string, hint?: string, changed: (text: string) => void}} options
 */
export function filterBox(options) {
  /** @type {number | undefined} */
  let resting;
  const input = el("input", { type: "search", placeholder: options.placeholder, value: options.value, autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-label": options.label, class: "filter", title: options.hint });
  const tell = () => {
    clearTimeout(resting);
    options.changed(input.value);
  };
  input.addEventListener("input", () => {
    clearTimeout(resting);
    resting = setTimeout(tell, REST_MS);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") tell();
    else if (event.key === "Escape" && input.value) {
      event.stopPropagation();
      input.value = "";
      tell();
    }
  });
  return input;
}

/** @type {[string, string][]} Choices of a time since when, in minutes, with their words. */
export const PERIODS = [["", "All times"], ["15", "Last 15 minutes"], ["60", "Last hour"], ["1440", "Last 24 hours"]];

/**
 * The time that a choice of PERIODS means, to the minute. Null for all times.
 * @param {string} minutes
 */
export function sinceOf(minutes) {
  if (!(Number(minutes) > 0)) return null;
  return new Date(Math.floor(Date.now() / 60_000 - Number(minutes)) * 60_000).toISOString();
}

/**
 * A choice among a few values. One that is no longer offered stays while it is chosen.
 * @param {string} label
 * @param {[string, string][]} options values with their words
 * @param {string} chosen
 * @param {(value: string) => void} changed
 */
export function choice(label, options, chosen, changed) {
  const element = el("select", { "aria-label": label, change: () => changed(element.value) });
  let offered = "";
  /** @param {[string, string][]} now */
  const offer = (now) => {
    const all = now.some(([value]) => value === chosen) ? now : [...now, /** @type {[string, string]} */ ([chosen, chosen])];
    if (offered !== (offered = JSON.stringify(all))) fill(element, all.map(([value, word]) => el("option", { value }, word)));
    element.value = chosen;
  };
  element.addEventListener("change", () => (chosen = element.value));
  offer(options);
  return {
    element,
    offer,
    /** @param {string} value */
    show(value) {
      chosen = value;
      offer(options);
    },
  };
}

/**
 * A box that asks for the fields which schemas mark as personal.
 * @param {(wanted: boolean) => void} changed
 */
export function personalBox(changed) {
  const box = el("input", { type: "checkbox", change: () => changed(box.checked) });
  return el("label", { class: "personal", title: "Fields that a schema marks as personal. That they were shown, and to whom, goes into the audit log" }, box, "Personal data");
}

/**
 * A panel beside a listing, for one of its rows.
 */
export class Panel {
  /** @type {(() => void) | null} */
  #closed = null;
  /** @type {Element | null} */
  #from = null;
  element = el("aside", { class: "panel", hidden: true, "aria-label": "Details" });

  constructor() {
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) {
        event.stopPropagation();
        this.close();
      }
    });
  }

  get open() {
    return !this.element.hidden;
  }

  /**
   * @param {Node | string} title
   * @param {(Node | string)[]} content
   * @param {() => void} closed
   */
  show(title, content, closed) {
    if (this.open) this.#closed?.();
    else this.#from = document.activeElement;
    this.#closed = closed;
    const heading = el("h2", { tabindex: -1 }, title);
    fill(this.element, el("header", null, heading, el("button", { type: "button", class: "bare", "aria-label": "Close the details", title: "Close (Esc)", click: () => this.close() }, "×")), el("div", { class: "body" }, ...content));
    this.element.hidden = false;
    heading.focus({ preventScroll: true });
  }

  close() {
    if (!this.open) return;
    this.element.hidden = true;
    this.#closed?.();
    this.#closed = null;
    fill(this.element);
    if (this.#from instanceof HTMLElement && this.#from.isConnected) this.#from.focus();
  }
}
