/** Bridges to other gateways: one line for each venue. */

import { nothing } from "../dialogs.js";
import { add, client, cut, el } from "../dom.js";
import { Listing } from "../listing.js";
import { age, count, plural, shownShort, time } from "../text.js";

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const listing = new Listing({
    route: "bridges",
    rows: "bridges",
    query: () => ({}),
    every_ms: 2000,
    table: {
      label: "Bridges",
      key: (row) => row.venue,
      open: (row) => {
        const [route] = row.routes.filter((/** @type {any} */ one) => one.direction === (row.side === "CENTRE" ? "UP" : "DOWN"));
        location.hash = `#/topics?${new URLSearchParams({ glob: route ? route.mapped : "" })}`;
      },
      hint: (row) => `Open the topics of ${shownShort(row.venue, 100)}`,
      columns: [
        { title: "Venue", kind: "wide", cell: (row) => cut(row.venue) },
        { title: "Link", cell: (row) => el("span", { class: row.up ? "ok" : "bad" }, row.up ? "up" : client(`down: ${row.down}`, 60)) },
        { title: "Unknown since", cell: (row) => (row.unknown_since ? el("time", { datetime: row.unknown_since, title: row.unknown_since }, time(row.unknown_since)) : "") },
        { title: "Behind", kind: "number", cell: (row) => age(row.behind_s) },
        { title: "State", kind: "extra", cell: (row) => cut(row.because ? `${row.state}: ${row.because}` : row.state) },
        { title: "Quarantined", kind: "number", cell: (row) => count(row.quarantined) },
        { title: "Heard", kind: "extra", cell: (row) => el("time", { datetime: row.heard_at, title: row.heard_at }, time(row.heard_at)) },
        { title: "Host", kind: "extra", cell: (row) => cut(row.host) },
      ],
    },
    summary: (_answer, rows) => `${plural(rows.length, "bridge")}, ${rows.filter((row) => !row.up).length} down`,
    empty: () => nothing("No bridge publishes its link here.", "A bridge forwards values from one gateway to another, and shows here once it has connected."),
  });
  add(root, listing.element);
  return () => listing.stop();
}
