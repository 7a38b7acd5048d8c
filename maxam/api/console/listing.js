/**
 * A view of a listing of the API: it polls the first pages, as far as the operator asked for more, and shows a summary.
 */

import { refusal } from "./dialogs.js";
import { add, badge, el, fill } from "./dom.js";
import { get, path } from "./api.js";
import { Poll } from "./link.js";
import { Table } from "./table.js";
import { count } from "./text.js";

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
 * @property {(problem: import("./api.js").Problem) => Node} [refused] the element for a refusal
 */

/** @template R */
export class Listing {
  #pages = 1;
  #more = el("button", { type: "button", class: "quiet", click: () => this.#readMore() }, "Show more");
  #foot = el("p", { class: "foot" });

  /** @param {ListingOptions<R>} options */
  constructor(options) {
    this.options = options;
    this.table = new Table(options.table);
    this.summary = el("p", { class: "summary", role: "status" });
    this.place = el("div", { class: "place" }, el("p", { class: "loading" }, "Asking the gateway …"));
    this.element = el("div", { class: "listing" }, this.summary, this.place, this.#foot);
    this.poll = new Poll(
      (signal) => this.#load(signal),
      options.every_ms,
      ({ answer, rows, more, incomplete }) => this.#show(answer, rows, more, incomplete),
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
    this.poll.again();
  }

  /** @param {AbortSignal} signal */
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
    if (more && this.#pages < PAGES_MAX) add(this.#foot, `The first ${count(rows.length)} are shown. `, this.#more);
    else if (more) add(this.#foot, `The first ${count(rows.length)} are shown: narrow it by the filter, or use maxam-admin for all.`);
  }

  #readMore() {
    this.#pages = Math.min(PAGES_MAX, this.#pages + 2);
    this.poll.again();
  }
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
