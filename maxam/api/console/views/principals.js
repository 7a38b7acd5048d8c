/** Principals of the policy with rights, certificates and last use, and the tokens of enrolment. */

import { access, change, get, path } from "../api.js";
import { facts } from "../chart.js";
import { confirm, nothing } from "../dialogs.js";
import { add, badge, client, cut, el, fill } from "../dom.js";
import { filterBox, Listing, Panel } from "../listing.js";
import { Poll } from "../link.js";
import { age, count, plural, shownShort, time } from "../text.js";

const DAY_S = 86_400;

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  let typed = query.get("find") ?? "";
  const panel = new Panel();
  const listing = new Listing({
    route: "principals",
    rows: "principals",
    query: () => ({ find: typed }),
    every_ms: 5000,
    table: {
      label: "Principals",
      key: (row) => row.principal,
      open: (row) => open(row),
      hint: (row) => `Open the principal ${shownShort(row.principal, 60)}`,
      columns: [
        { title: "Principal", sort: (row) => row.principal, cell: (row) => cut(row.principal) },
        { title: "Capabilities", kind: "wide", sort: (row) => row.capabilities.join(" "), cell: (row) => cut(row.capabilities.join(", ") || "–") },
        { title: "Admin rights", sort: (row) => row.admin.join(" "), cell: (row) => row.admin.join(", ") || "–" },
        { title: "Last seen", sort: (row) => row.last_seen_at, cell: (row) => (row.connected ? badge("ok", "connected") : seen(row.last_seen_at)) },
        { title: "Certificate", sort: (row) => row.valid_until, cell: (row) => validity(row.valid_until) },
        { title: "Sessions", kind: "number", sort: (row) => row.sessions, cell: (row) => count(row.sessions) },
        { title: "Enrolled", kind: "extra", cell: (row) => (row.enrolled ? "yes" : "–") },
      ],
    },
    summary: (answer, rows) => `${plural(rows.length, "principal")}, ${rows.filter((row) => row.connected).length} of them connected; uses are known since ${time(answer.since)}`,
    empty: () => (typed ? nothing("No principal matches.", "A text finds principals that hold it in their name or in that of a capability.") : nothing("The policy has no principals.")),
  });
  const filter = filterBox({
    label: "Filter principals by name or capability",
    placeholder: "Filter: principal or capability",
    value: typed,
    changed: (text) => {
      typed = text;
      remember({ find: typed });
      listing.restart();
    },
  });

  /** @param {any} row */
  const open = (row) => panel.show(client(row.principal, 100), [details(row, () => listing.refresh(), () => panel.close())], () => undefined);
  const tokens = new Tokens();
  add(root, el("div", { class: "tools" }, filter), el("div", { class: "split" }, el("div", { class: "list" }, listing.element, tokens.element), panel.element));
  return () => {
    listing.stop();
    tokens.stop();
  };
}

/** @param {string | null} at */
function seen(at) {
  return at ? el("time", { datetime: at, title: at }, `${age(secondsSince(at))} ago`) : el("span", { class: "aside" }, "not since the start");
}

/** @param {string | null} until */
function validity(until) {
  if (!until) return el("span", { class: "aside" }, "expiry not known");
  const left_s = -secondsSince(until);
  const word = left_s < 0 ? `expired ${age(-left_s)} ago` : `expires in ${age(left_s)}`;
  return el("time", { datetime: until, title: until }, left_s < 3 * DAY_S ? badge("bad", word) : left_s < 21 * DAY_S ? badge("warn", word) : word);
}

/** @param {string} at */
function secondsSince(at) {
  return Math.trunc((Date.now() - Date.parse(at)) / 1000);
}

/**
 * @param {any} row
 * @param {() => void} changed
 * @param {() => void} close
 */
function details(row, changed, close) {
  const list = el("dl", { class: "facts" });
  /** @param {string[]} texts @param {string} none */
  const lines = (texts, none) => (texts.length ? el("ul", null, texts.map((one) => el("li", null, client(one, 300)))) : none);
  facts(list, [
    ["Sessions", row.sessions ? el("a", { href: `#/sessions?${new URLSearchParams({ find: row.principal })}` }, `${plural(row.sessions, "session")}, ${count(row.connected)} connected`) : "none"],
    ["Capabilities", lines(row.capabilities, "none")],
    ["Admin rights", row.admin.join(", ") || "none"],
    ["May send", lines(row.send, "nothing")],
    ["… of these only", row.owns === null ? null : lines(row.owns, "nothing")],
    ["May receive", lines(row.receive, "nothing")],
    ["Bridge headers", row.bridge ? "yes" : null],
    ["Personal fields", row.pii ? "yes" : null],
    ["Written in", client(`${row.file}, ${row.place}`)],
  ]);
  const certificates = row.certificates.map((/** @type {any} */ one) =>
    el("section", { class: "subscription" }, el("span", { class: "hex" }, one.fingerprint), el("p", null, validity(one.valid_until)), el("p", { class: "aside" }, "last seen ", seen(one.last_seen_at), one.address ? [" from ", client(one.address)] : null)),
  );
  const remove = () =>
    confirm({
      title: "Remove this principal?",
      text: ["Its connections are closed at once, and its certificate gives access no longer. To connect again it needs a new token."],
      type: row.principal,
      act: "Remove it",
      perform: async () => {
        await change("DELETE", path(["v1", "enrolments"], { principal: row.principal }));
        changed();
        close();
        return `${shownShort(row.principal, 60)} was removed`;
      },
    });
  return el(
    "div",
    null,
    list,
    el("h3", null, "Certificates"),
    certificates.length ? certificates : el("p", { class: "aside" }, "It has none, so no client can be it."),
    row.enrolled && access.enrol ? el("div", { class: "buttons" }, el("button", { type: "button", class: "danger quiet", click: () => void remove() }, "Remove …")) : null,
  );
}

/** One-time tokens with which clients enrol. Nothing without the right or without enrolment. */
class Tokens {
  element = el("section", { class: "tokens", hidden: true });
  #poll = new Poll((signal) => (access.enrol ? get("/v1/enrolment-tokens", signal) : Promise.resolve({ tokens: null })), 5000, (answer) => this.#show(answer.tokens), () => this.#show(null));

  stop() {
    this.#poll.stop();
  }

  /** @param {any[] | null} tokens */
  #show(tokens) {
    this.element.hidden = tokens === null;
    if (tokens === null) return;
    const now = Date.now();
    const rows = tokens.toReversed().map((one) => {
      const state = one.used_at ? badge("idle", "used") : Date.parse(one.expires_at) < now ? badge("idle", "expired") : badge("ok", "waits for its client");
      const waits = !one.used_at && Date.parse(one.expires_at) >= now;
      const revoke = el("button", { type: "button", class: "quiet", click: () => void this.#revoke(one) }, "Revoke …");
      return el("tr", null, el("th", { scope: "row" }, cut(one.principal)), el("td", null, state), el("td", null, cut(one.capabilities.join(", "))), el("td", null, cut(one.made_by)), el("td", null, el("time", { datetime: one.expires_at, title: one.expires_at }, time(one.expires_at))), el("td", null, waits ? revoke : null));
    });
    const heads = ["Principal", "State", "Capabilities", "Made by", "Valid until", ""].map((title) => el("th", { scope: "col" }, title));
    fill(
      this.element,
      el("h2", null, "Enrolment tokens of the last 30 days"),
      rows.length ? el("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Enrolment tokens" }, el("table", null, el("thead", null, el("tr", null, heads)), el("tbody", null, rows))) : el("p", { class: "aside" }, "None. Make one with maxam-admin enrolment token create."),
    );
  }

  /** @param {any} token */
  #revoke(token) {
    return confirm({
      title: "Revoke this token?",
      text: ["The client that was to use it cannot enrol. It needs another token."],
      act: "Revoke",
      perform: async () => {
        await change("DELETE", path(["v1", "enrolment-tokens", token.id]));
        this.#poll.again();
        return `the token for ${shownShort(token.principal, 60)} was revoked`;
      },
    });
  }
}
