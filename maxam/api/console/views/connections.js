/** All connections to one of the listeners, before and after their authentication. */

import { nothing } from "../dialogs.js";
import { add, badge, cut, el } from "../dom.js";
import { filterBox, Listing } from "../listing.js";
import { age, bytes, count, plural, shownShort } from "../text.js";

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  let typed = query.get("find") ?? "";
  const listing = new Listing({
    route: "connections",
    rows: "connections",
    query: () => ({ find: typed }),
    every_ms: 2000,
    table: {
      label: "Connections",
      key: (row) => String(row.id),
      open: (row) => {
        if (row.client_id !== null && row.principal !== null) location.hash = `#/sessions?${new URLSearchParams({ principal: row.principal, client_id: row.client_id })}`;
      },
      hint: (row) => `Connection ${row.id} from ${shownShort(row.address, 60)}`,
      columns: [
        { title: "From", sort: (row) => row.address, cell: (row) => cut(row.address) },
        { title: "Kind", cell: (row) => kind(row) },
        { title: "State", sort: (row) => row.state, cell: (row) => badge(row.state === "connected" ? "ok" : row.state === "closing" ? "warn" : "idle", row.state) },
        { title: "Principal", sort: (row) => row.principal, cell: (row) => (row.principal === null ? el("span", { class: "aside" }, "not said yet") : cut(row.principal)) },
        { title: "Client-id", sort: (row) => row.client_id, cell: (row) => cut(row.client_id ?? "–") },
        { title: "Open for", kind: "number", sort: (row) => row.open_s, cell: (row) => age(row.open_s) },
        { title: "Heard", kind: "number extra", sort: (row) => row.heard_s, cell: (row) => (row.heard_s === null ? "–" : `${age(row.heard_s)} ago`) },
        { title: "In", kind: "number extra", sort: (row) => row.bytes_in, cell: (row) => bytes(row.bytes_in) },
        { title: "Out", kind: "number extra", sort: (row) => row.bytes_out, cell: (row) => bytes(row.bytes_out) },
        { title: "SENDs", kind: "number extra", sort: (row) => row.sends, cell: (row) => count(row.sends) },
        { title: "MESSAGEs", kind: "number extra", sort: (row) => row.messages, cell: (row) => count(row.messages) },
        { title: "In flight", kind: "number extra", sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
        { title: "TLS", kind: "extra", cell: (row) => row.tls ?? "–" },
      ],
    },
    summary: (_answer, rows) => `${plural(rows.length, "connection")}: ${rows.filter((row) => row.kind === "stomp").length} of clients, ${rows.filter((row) => row.kind === "admin").length} of operators`,
    empty: () => (typed ? nothing("No connection matches.", "A text finds connections that hold it in principal, client-id or address.") : nothing("There are no connections.")),
  });
  const filter = filterBox({
    label: "Filter connections by principal, client-id or address",
    placeholder: "Filter: principal, client-id or address",
    value: typed,
    changed: (text) => {
      typed = text;
      remember({ find: typed });
      listing.restart();
    },
  });
  add(root, el("div", { class: "tools" }, filter), listing.element);
  return () => listing.stop();
}

/** @param {any} row */
function kind(row) {
  if (row.kind !== "stomp") return "operator";
  const stomp = row.stomp ? `STOMP ${row.stomp}` : "STOMP";
  return row.front === undefined ? stomp : `${stomp}, front ${row.front}`;
}
