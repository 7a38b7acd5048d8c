/** Tables of listings that are read page by page: bounded, with rows that stay the same elements while their data changes. */

import { add, el, fill, noRoom } from "./dom.js";

/**
 * @template R
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: R) => Node | string | null} cell
 * @property {string} [kind] class of its cells: `number`, `wide`, `extra` (left out where there is no room)
 * @property {(row: R) => string | number | null | undefined} [sort] what rows are sorted by when the title is pressed; without it the title is no button
 */

/**
 * @template R
 * @typedef {object} TableOptions
 * @property {string} label
 * @property {Column<R>[]} columns the first one identifies the row
 * @property {(row: R) => string} key
 * @property {(row: R) => void} [open] by a click anywhere, or by the button in the first column
 * @property {(row: R) => string} [hint] what the button does, for those who do not see the row
 * @property {(waiting: number) => void} [held] is called with the number of rows that wait while the pointer holds the others
 */

/**
 * A row that is shown.
 * @template R
 * @typedef {object} Known
 * @property {HTMLTableRowElement} row
 * @property {string} json its data as text, to see whether they changed
 * @property {R} data
 */

/** @template R */
export class Table {
  /** @type {Map<string, Known<R>>} */
  #rows = new Map();
  #body = el("tbody");
  /** @type {R[]} */
  #given = [];
  /** @type {HTMLTableCellElement[]} */
  #heads;
  #over = false; // the pointer of a mouse is on the rows, which therefore stay where they are
  #sorted = -1; // place of the column that rows are sorted by
  #falls = false;

  /** @param {TableOptions<R>} options */
  constructor(options) {
    this.options = options;
    this.#heads = options.columns.map((column, at) => el("th", { scope: "col", class: column.kind ?? "" }, column.sort ? el("button", { type: "button", class: "sort", title: "Sort the rows that are shown", click: () => this.#sort(at) }, column.title) : column.title));
    this.element = el("div", { class: "table", tabindex: 0, role: "region", "aria-label": options.label }, el("table", null, el("thead", null, el("tr", null, this.#heads)), this.#body));
    this.noRoom = noRoom(this.element, () => this.#heads);
    this.#body.addEventListener("keydown", (event) => this.#key(event));
    this.#body.addEventListener("pointermove", (event) => (this.#over = event.pointerType === "mouse"));
    this.#body.addEventListener("pointerleave", () => {
      this.release();
      this.show(this.#given);
    });
  }

  /** Let rows move again, until the pointer moves over them. */
  release() {
    this.#over = false;
  }

  get size() {
    return this.#rows.size;
  }

  /**
   * Show these rows, in this order. Elements of rows that were there are kept, and with them the focus. Under the pointer no row comes,
   * goes or moves.
   * @param {R[]} rows
   */
  show(rows) {
    const { columns, key } = this.options;
    this.#given = rows;
    const names = new Set(rows.map(key));
    if (!rows.length) this.release();
    const held = this.#over && this.#rows.size > 0;
    this.options.held?.(held ? rows.length - [...this.#rows.keys()].filter((name) => names.has(name)).length : 0);
    const gone = new Set(this.#rows.keys());
    let place = this.#body.firstElementChild;
    for (const data of held ? this.#inPlace(rows) : this.#inOrder(rows)) {
      const name = key(data);
      gone.delete(name);
      const json = JSON.stringify(data);
      let known = this.#rows.get(name);
      if (!known) {
        const row = el("tr");
        known = { row, json: "", data };
        this.#rows.set(name, known);
        if (this.options.open) row.addEventListener("click", (event) => this.#click(event, name));
        columns.forEach((column, at) => add(row, el(at === 0 ? "th" : "td", { class: column.kind ?? "", scope: at === 0 ? "row" : null })));
      }
      known.data = data;
      known.row.classList.toggle("gone", !names.has(name));
      if (known.json !== json) {
        known.json = json;
        const { row } = known;
        columns.forEach((column, at) => {
          const cell = row.children[at];
          if (!cell) return;
          const content = column.cell(data);
          if (at === 0 && this.options.open) this.#name(cell, content, data);
          else fill(cell, content);
        });
      }
      if (known.row === place) place = place.nextElementSibling;
      else this.#body.insertBefore(known.row, place);
    }
    for (const name of gone) {
      this.#rows.get(name)?.row.remove();
      this.#rows.delete(name);
    }
  }

  /**
   * Sort by a column: largest first for numbers, A first for texts. Again turns that round, and once more gives the order of the gateway.
   * @param {number} at
   */
  #sort(at) {
    const numbers = this.#given.some((row) => typeof this.options.columns[at]?.sort?.(row) === "number");
    if (this.#sorted !== at) [this.#sorted, this.#falls] = [at, numbers];
    else if (this.#falls === numbers) this.#falls = !numbers;
    else this.#sorted = -1;
    this.#heads.forEach((head, place) => {
      if (place === this.#sorted) head.setAttribute("aria-sort", this.#falls ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.release();
    this.show(this.#given);
  }

  /**
   * The rows that are shown, where they are, with what is known of them now.
   * @param {R[]} rows
   */
  #inPlace(rows) {
    const now = new Map(rows.map((row) => [this.options.key(row), row]));
    const places = new Map([...this.#rows].map(([name, known]) => [known.row, name]));
    return [...this.#body.children].map((row) => {
      const name = places.get(/** @type {HTMLTableRowElement} */ (row)) ?? "";
      return now.get(name) ?? /** @type {Known<R>} */ (this.#rows.get(name)).data;
    });
  }

  /** @param {R[]} rows */
  #inOrder(rows) {
    const by = this.options.columns[this.#sorted]?.sort;
    if (!by) return rows;
    const sign = this.#falls ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [left, right] = [by(one) ?? null, by(other) ?? null];
      if (left === null || right === null) return left === right ? 0 : left === null ? 1 : -1; // what is not known is last
      if (typeof left === "number" && typeof right === "number") return sign * (left - right);
      return sign * (String(left) < String(right) ? -1 : String(left) > String(right) ? 1 : 0);
    });
  }

  /** @param {Element} cell @param {Node | string | null} content @param {R} data */
  #name(cell, content, data) {
    const button = cell.querySelector("button.open");
    if (button) fill(button, content);
    else fill(cell, el("button", { type: "button", class: "open", "aria-label": this.options.hint?.(data) }, content));
  }

  /** @param {MouseEvent} event @param {string} name */
  #click(event, name) {
    const target = /** @type {Element} */ (event.target);
    const button = target.closest("button, a");
    if ((button && !button.classList.contains("open")) || getSelection()?.toString()) return;
    const known = this.#rows.get(name);
    if (!known) return;
    for (const row of this.#body.querySelectorAll("tr.opened")) row.classList.remove("opened");
    known.row.classList.add("opened");
    this.options.open?.(known.data);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const buttons = [.../** @type {NodeListOf<HTMLElement>} */ (this.#body.querySelectorAll("button.open"))];
    const now = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (now < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + 10, PageUp: now - 10, Home: 0, End: buttons.length - 1 };
    const wanted = steps[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(wanted, buttons.length - 1))]?.focus();
  }
}
