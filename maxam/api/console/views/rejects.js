/** The last rejected SENDs with their numbers by principal and result, why they were rejected, and sending one again. */

import { change, get, path, Problem } from "../api.js";
import { facts } from "../chart.js";
import { action, confirm, nothing, refusal } from "../dialogs.js";
import { add, client, cut, el, fill } from "../dom.js";
import { choice, filterBox, Listing, Panel, personalBox, PERIODS, sinceOf } from "../listing.js";
import { Poll } from "../link.js";
import { bytes, count, globOf, plural, shownShort, time } from "../text.js";
import { hex } from "./topics.js";

const AROUND = 24; // bytes shown before and after a fault
const SUMS_SHOWN = 12;

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  const wanted = { glob: query.get("glob") ?? "", principal: query.get("principal") ?? "", result: query.get("result") ?? "", since: query.get("since") ?? "" };
  const asked = () => ({ destination: wanted.glob ? globOf(wanted.glob) : null, principal: wanted.principal, result: wanted.result, since: sinceOf(wanted.since) });
  const panel = new Panel();
  const listing = new Listing({
    route: "rejects",
    rows: "rejects",
    query: asked,
    every_ms: 2000,
    table: {
      label: "Rejected SENDs, the newest first",
      key: (row) => row.id,
      open: (row) => open(row.id),
      hint: (row) => `Open the reject of ${shownShort(row.destination, 80)} at ${time(row.rejected_at)}`,
      columns: [
        { title: "Time", sort: (row) => row.rejected_at, cell: (row) => el("time", { datetime: row.rejected_at, title: row.rejected_at }, time(row.rejected_at)) },
        { title: "Principal", sort: (row) => row.principal, cell: (row) => (row.principal ? cut(row.principal) : el("span", { class: "aside" }, "unknown")) },
        { title: "Destination", kind: "wide", sort: (row) => row.destination, cell: (row) => cut(row.destination) },
        { title: "Result", sort: (row) => row.result, cell: (row) => el("span", { class: `code ${row.disposition}` }, row.result || row.disposition) },
        { title: "Reason", kind: "wide", cell: (row) => cut(row.reason) },
        { title: "Size", kind: "number extra", sort: (row) => row.body_bytes, cell: (row) => bytes(row.body_bytes) },
        { title: "Again", kind: "number extra", cell: (row) => (row.resubmitted ? count(row.resubmitted) : "") },
      ],
    },
    summary: (answer) => `${plural(answer.kept, "reject")} kept, ${count(answer.forgotten)} made room for newer ones, since ${time(answer.since)}`,
    empty: () => nothing("No rejected SEND is kept.", Object.values(wanted).some(Boolean) ? "None of those that are kept matches the filters." : "Refused SENDs show here, with their reason."),
  });
  const sums = new Sums(() => ({ ...asked(), principal: null, result: null }), wanted, (principal, result) => {
    const same = wanted.principal === principal && wanted.result === result;
    principalBox.value = wanted.principal = same ? "" : principal;
    resultBox.show((wanted.result = same ? "" : result));
    begin();
  });
  const begin = () => {
    remember(wanted);
    listing.restart();
    sums.poll.again();
  };
  const filter = filterBox({
    label: "Filter by destination",
    placeholder: "Filter: a part of a destination, or a glob",
    value: wanted.glob,
    changed: (text) => {
      wanted.glob = text;
      begin();
    },
  });
  const principalBox = filterBox({
    label: "Filter by principal",
    placeholder: "Principal",
    value: wanted.principal,
    hint: "The whole name of a principal",
    changed: (text) => {
      wanted.principal = text.trim();
      begin();
    },
  });
  principalBox.classList.add("short");
  const resultBox = choice("Filter by result", [["", "All results"]], wanted.result, (chosen) => {
    wanted.result = chosen;
    begin();
  });
  sums.results = (found) => resultBox.offer([["", "All results"], ...found.map((one) => /** @type {[string, string]} */ ([one, one]))]);
  const sinceBox = choice("Filter by time", PERIODS, wanted.since, (chosen) => {
    wanted.since = chosen;
    begin();
  });

  let pii = false;
  /** @type {string | null} */
  let opened = null;
  const holder = el("div");
  /** @param {string} id */
  const open = (id) => {
    fill(holder, el("p", { class: "loading" }, "Asking the gateway …"));
    panel.show("Rejected SEND", [holder], () => (opened = null));
    opened = id;
    void read(id);
  };
  /** @param {string} id */
  const read = async (id) => {
    /** @type {HTMLElement} */
    let found;
    try {
      found = detail(await get(path(["v1", "rejects", id], { pii: String(pii) })), () => void read(id));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      found = refusal(error);
    }
    if (opened === id) fill(holder, found);
  };
  const personal = personalBox((wanted) => {
    pii = wanted;
    if (opened !== null) void read(opened);
  });
  add(root, el("div", { class: "tools" }, filter, principalBox, resultBox.element, sinceBox.element, personal), sums.element, el("div", { class: "split" }, el("div", { class: "list" }, listing.element), panel.element));
  return () => {
    listing.stop();
    sums.poll.stop();
  };
}

/** Numbers of the rejects by principal and result, within the filters of destination and time. Each is a button that filters by both. */
class Sums {
  element = el("div", { class: "sums", role: "group", "aria-label": "Numbers by principal and result" });
  /** @type {(results: string[]) => void} */
  results = () => undefined;
  #shown = "";

  /**
   * @param {() => Record<string, string | null>} asked
   * @param {{principal: string, result: string}} wanted the filters in force
   * @param {(principal: string, result: string) => void} choose
   */
  constructor(asked, wanted, choose) {
    this.wanted = wanted;
    this.choose = choose;
    this.poll = new Poll((signal) => get(path(["v1", "reject-sums"], asked()), signal), 2000, (answer) => this.#show(answer.sums), () => fill(this.element));
  }

  /** @param {any[]} sums */
  #show(sums) {
    const { principal, result } = this.wanted;
    const said = JSON.stringify([sums, principal, result]);
    if (said === this.#shown) return;
    this.#shown = said;
    this.results([...new Set(sums.map((one) => one.result))].sort());
    const focused = [...this.element.children].indexOf(/** @type {Element} */ (document.activeElement));
    fill(
      this.element,
      sums.slice(0, SUMS_SHOWN).map((one) =>
        el("button", { type: "button", class: "sum", "aria-pressed": String(one.principal === principal && one.result === result), title: `The newest, at ${time(one.last_at)}, to ${shownShort(one.destination, 200)}: ${shownShort(one.reason, 300)}`, click: () => this.choose(one.principal, one.result) }, el("b", null, count(one.count)), " ", one.result, " ", el("span", { class: "aside" }, shownShort(one.principal, 40))),
      ),
      sums.length > SUMS_SHOWN ? el("span", { class: "aside" }, `and ${plural(sums.length - SUMS_SHOWN, "smaller sum")}`) : null,
    );
    const again = this.element.children[focused];
    if (again instanceof HTMLElement) again.focus();
  }
}

/** @param {any} row @param {() => void} changed */
function detail(row, changed) {
  const first = el("dl", { class: "facts" });
  facts(first, [
    ["Destination", client(row.destination, 600)],
    ["Result", el("span", { class: `code ${row.disposition}` }, row.result || row.disposition)],
    ["Reason", client(row.reason, 600)],
    ["Rejected", el("time", { datetime: row.rejected_at, title: row.rejected_at }, time(row.rejected_at))],
  ]);
  const about = el("dl", { class: "facts" });
  facts(about, [
    ["Principal", row.principal ? client(row.principal, 200) : "the policy knows none"],
    ["Certificate", el("span", { class: "hex" }, row.fingerprint)],
    ["Held against", row.schema ? el("a", { href: `#/schemas?${new URLSearchParams({ type: row.schema })}` }, client(`${row.schema} ${row.schema_version}`, 200)) : "no schema"],
    ["Size", bytes(row.body_bytes)],
    ["Changed since", row.topic_changed ? "yes: the topic has another value now" : "no"],
  ]);
  /** @type {HTMLElement[]} */
  const parts = [first];
  const { fault } = row;
  if (fault) {
    const told = el("dl", { class: "facts fault" });
    facts(told, [
      ["Where", client(fault.path || "the whole value", 300)],
      ["Expected", client(fault.expected, 300)],
      ["Found", client(fault.found, 300)],
      ["Byte", fault.offset === null ? null : `${count(fault.offset)} of ${count(row.body_bytes)}`],
      ["Envelope item", fault.item === null ? null : `${fault.item} (key ${fault.item_key})`],
    ]);
    parts.push(el("h3", null, "The fault"), told);
    if (typeof row.body === "string" && fault.offset !== null) parts.push(around(row.body, fault.offset));
  }
  const headers = /** @type {[string, string][]} */ (row.headers ?? []);
  if (headers.length) parts.push(el("table", { class: "headers" }, el("caption", null, "Headers"), el("tbody", null, headers.map(([name, text]) => el("tr", null, el("th", { scope: "row" }, client(name, 100)), el("td", null, client(text, 300)))))));
  parts.push(el("h3", null, "Body"));
  parts.push(typeof row.body === "string" ? hex(row.body) : el("p", { class: "aside" }, "Not shown: ", client(row.problem ?? row.body_state, 300), row.body_state === "personal" ? ". “Personal data” above shows it." : "."));
  parts.push(el("h3", null, "About it"), about);
  if (row.resubmissions?.length) {
    parts.push(el("h3", null, "Sent again"), el("ul", null, row.resubmissions.map((/** @type {any} */ one) => el("li", null, client(one.by, 100), " at ", time(one.at), ": ", one.disposition, one.reason ? [", ", client(one.reason, 300)] : null))));
  }
  if (row.body_state === "kept" || row.body_state === "personal") {
    parts.push(el("div", { class: "buttons" }, action({ class: "quiet", click: () => void again(row, changed) }, "Send it again …")));
  }
  return el("div", null, ...parts);
}

/** @param {any} row @param {() => void} changed */
async function again(row, changed) {
  const stale = row.topic_changed || row.result === "conflict";
  await confirm({
    title: "Send it again?",
    text: [
      "It is sent as your own principal, and judged by the rules, schemas and rights that are in force now.",
      ...(stale ? ["The topic has been changed since: what was rejected would replace a newer value."] : []),
    ],
    act: stale ? "Replace the newer value" : "Send again",
    type: stale ? "replace" : undefined,
    perform: async () => {
      await change("POST", path(["v1", "rejects", row.id, "resubmit"], { force: stale ? "true" : null }));
      return "it was accepted";
    },
  });
  changed();
}

/** @param {string} base64 @param {number} offset */
function around(base64, offset) {
  const body = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const from = Math.max(0, offset - AROUND);
  /** @param {Uint8Array} part */
  const digits = (part) => [...part].map((one) => one.toString(16).padStart(2, "0")).join(" ");
  return el(
    "pre",
    { class: "hexdump around", tabindex: 0, role: "group", "aria-label": "Bytes around the fault" },
    from > 0 ? "… " : "",
    digits(body.subarray(from, offset)),
    " ",
    el("mark", null, offset < body.length ? digits(body.subarray(offset, offset + 1)) : "end"),
    " ",
    digits(body.subarray(offset + 1, offset + 1 + AROUND)),
    offset + 1 + AROUND < body.length ? " …" : "",
  );
}
