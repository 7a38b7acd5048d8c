/** The audit log of the gateway: who did what, with which outcome and why. The newest lines first, and each new one as it is written. */

import { get, path } from "../api.js";
import { facts } from "../chart.js";
import { nothing } from "../dialogs.js";
import { add, badge, client, cut, el } from "../dom.js";
import { choice, filterBox, Listing, Panel, PERIODS, sinceOf } from "../listing.js";
import { count, plural, shownShort, time } from "../text.js";

const TAIL = 1000; // lines before the end that are searched without a period
const PAGE = 200;
const PAGES_MAX = 50; // of one search: 100,000 lines at most
const ROWS_MAX = 500; // lines that are shown
/** @type {[string, string][]} */
const TIMES = [["", `Last ${count(TAIL)} lines`], ...PERIODS.slice(1), ["10080", "Last 7 days"]];
const FAILED = /refused|rejected|revoked|lost|expired|failed|waited/;

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  const wanted = { find: query.get("find") ?? "", since: query.get("since") ?? "" };
  const panel = new Panel();
  const lines = new Lines();
  const listing = new Listing({
    route: "audit/lines",
    rows: "lines",
    query: () => ({ find: wanted.find, since: sinceOf(wanted.since) }),
    load: (signal) => lines.load({ find: wanted.find, since: wanted.since }, signal),
    every_ms: 2000,
    table: {
      label: "Lines of the audit log, the newest first",
      key: (row) => String(row.sequence),
      open: (row) => panel.show(`Line ${count(row.sequence)}`, [details(row)], () => undefined),
      hint: (row) => `Open line ${row.sequence}: ${shownShort(row.event, 60)} at ${time(row.at)}`,
      columns: [
        { title: "Time", sort: (row) => row.at, cell: (row) => el("time", { datetime: row.at, title: row.at }, time(row.at)) },
        { title: "Event", sort: (row) => row.event, cell: (row) => cut(row.event) },
        { title: "Outcome", sort: (row) => row.outcome, cell: (row) => outcome(row.outcome) },
        { title: "Principal", sort: (row) => row.principal, cell: (row) => (row.principal ? cut(row.principal) : el("span", { class: "aside" }, "–")) },
        { title: "What, or why", kind: "wide", cell: (row) => cut(row.reason || what(row)) },
        { title: "Times", kind: "number extra", sort: (row) => row.count ?? 1, cell: (row) => (row.count === undefined ? "" : count(row.count)) },
        { title: "From", kind: "extra", sort: (row) => row.address, cell: (row) => cut(row.address ?? "–") },
      ],
    },
    summary: (_answer, rows) => `${plural(rows.length, "line")}${rows.length === ROWS_MAX ? ", the newest that match" : ""}${wanted.since ? "" : `, of the last ${count(TAIL)} and of those since then`}`,
    empty: () => nothing("No line of the audit log matches.", wanted.since ? "Choose a longer time, or another text." : `Only the last ${count(TAIL)} lines were searched. Choose a time to search further back.`),
  });
  const begin = () => {
    remember(wanted);
    listing.restart();
  };
  const filter = filterBox({
    label: "Filter the audit log",
    placeholder: "Filter: event, principal, outcome, address, certificate",
    value: wanted.find,
    hint: "A text finds lines that hold it in any of their values",
    changed: (text) => {
      wanted.find = text.trim();
      begin();
    },
  });
  const since = choice("Filter by time", TIMES, wanted.since, (chosen) => {
    wanted.since = chosen;
    begin();
  });
  add(root, el("div", { class: "tools" }, filter, since.element), el("div", { class: "split" }, el("div", { class: "list" }, listing.element), panel.element));
  return () => listing.stop();
}

/** Reads the lines of a search, and then those that are written later. */
class Lines {
  #search = "";
  /** @type {any[]} the newest last */
  #rows = [];
  #last = 0;

  /**
   * @param {{find: string, since: string}} wanted
   * @param {AbortSignal} signal
   */
  async load(wanted, signal) {
    const search = JSON.stringify(wanted);
    const goesOn = search === this.#search;
    const rows = goesOn ? this.#rows : [];
    /** @type {Record<string, string | number | null>} */
    let from = goesOn ? { after: this.#last } : wanted.since ? { since: sinceOf(wanted.since) } : { tail: TAIL };
    let answer = null;
    for (let page = 0; page < PAGES_MAX; page++) {
      answer = await get(path(["v1", "audit", "lines"], { find: wanted.find, limit: PAGE, ...from }), signal);
      rows.push(...answer.lines);
      rows.splice(0, Math.max(0, rows.length - ROWS_MAX));
      // Kept after each page: a search that is interrupted goes on here.
      [this.#search, this.#rows, this.#last] = [search, rows, answer.last];
      if (answer.next === null) break;
      from = { after: answer.next };
    }
    return { answer, rows: rows.toReversed(), more: false, incomplete: false };
  }
}

/** @param {string} word */
function outcome(word) {
  return FAILED.test(word) ? badge("warn", shownShort(word, 40)) : cut(word);
}

const APART = new Set(["sequence", "at", "event", "outcome", "principal", "reason", "address", "previous", "count", "first", "last", "fingerprint"]);

/** @param {any} row */
function what(row) {
  return Object.entries(row)
    .filter(([name]) => !APART.has(name))
    .map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

/** @param {any} row */
function details(row) {
  const list = el("dl", { class: "facts" });
  facts(
    list,
    Object.entries(row).map(([name, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      const shown = name === "previous" || name === "fingerprint" ? el("span", { class: "hex" }, text) : name === "at" || name === "first" || name === "last" ? el("time", { datetime: text, title: text }, time(text)) : client(text, 600);
      return /** @type {[string, Node]} */ ([name.replaceAll("_", " "), shown]);
    }),
  );
  return list;
}
