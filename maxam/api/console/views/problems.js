/** Clients that cannot connect or do not stay connected: why, and what to do. */

import { nothing } from "../dialogs.js";
import { add, badge, client, cut, el } from "../dom.js";
import { Listing } from "../listing.js";
import { age, count, plural, shownShort } from "../text.js";

const WORDS = /** @type {Record<string, string>} */ ({ refused: "refused", "taken-over": "shares a client-id", reconnecting: "keeps reconnecting" });

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const listing = new Listing({
    route: "connect-problems",
    rows: "problems",
    every_ms: 2000,
    table: {
      label: "Clients that cannot connect",
      key: (row) => [row.first_at, row.kind, row.reason, row.principal ?? row.fingerprint, row.listener].join("\n"),
      columns: [
        { title: "Who", cell: (row) => who(row) },
        { title: "Problem", cell: (row) => badge(row.often ? "bad" : "warn", WORDS[row.kind] ?? row.kind) },
        { title: "Why, and what to do", kind: "wide wrap", cell: (row) => el("div", null, client(row.reason, 120), row.advice && el("p", { class: "aside" }, row.advice.replaceAll("`", ""))) },
        { title: "From", kind: "extra", cell: (row) => cut(row.address) },
        { title: "Times", kind: "number", sort: (row) => row.count, cell: (row) => count(row.count) },
        { title: "Last", kind: "number", sort: (row) => row.last_s, cell: (row) => el("time", { datetime: row.last_at, title: row.last_at }, `${age(row.last_s)} ago`) },
        { title: "Listener", kind: "extra", cell: (row) => row.listener },
      ],
    },
    summary: (answer, rows) => `${plural(answer.count, "client")} of the last hour, ${rows.filter((/** @type {any} */ row) => row.often).length} of them again and again${answer.forgotten ? `; ${count(answer.forgotten)} older ones made room` : ""}`,
    empty: () => nothing("Every client that wants to can connect.", "Clients show here for an hour after they were refused, lost their session to another connection, or came back again and again."),
  });
  add(root, listing.element);
  return () => listing.stop();
}

/** @param {any} row */
function who(row) {
  if (row.principal === null) return row.fingerprint === null ? el("span", { class: "aside" }, "no certificate") : cut(`certificate ${row.fingerprint}`);
  if (row.client_id === null) return cut(row.principal);
  const name = shownShort(`${row.principal} / ${row.client_id}`, 300);
  return el("a", { href: `#/sessions?${new URLSearchParams({ principal: row.principal, client_id: row.client_id })}`, title: name }, cut(row.principal), el("span", { class: "aside" }, " / "), cut(row.client_id));
}
