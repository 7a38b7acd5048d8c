/** Subscriptions that do not have everything, the one that waits longest first. */

import { nothing } from "../dialogs.js";
import { add, cut, el } from "../dom.js";
import { Listing } from "../listing.js";
import { count, plural, shownShort } from "../text.js";
import { LATE_S, staleness, why } from "./staleness.js";

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const listing = new Listing({
    route: "subscriptions/slow",
    rows: "subscriptions",
    single: true,
    query: () => ({ limit: 100 }),
    every_ms: 1000,
    table: {
      label: "Subscriptions, the worst first",
      key: (row) => JSON.stringify([row.principal, row.client_id, row.id]),
      open: (row) => {
        location.hash = `#/sessions?${new URLSearchParams({ principal: row.principal, client_id: row.client_id })}`;
      },
      hint: (row) => `Open the session ${shownShort(row.client_id, 60)} of ${shownShort(row.principal, 60)}`,
      columns: [
        { title: "Principal", cell: (row) => cut(row.principal) },
        { title: "Client-id", cell: (row) => cut(row.client_id) },
        { title: "Subscription", kind: "wide aside-narrow", cell: (row) => cut(row.glob) },
        { title: "Staleness", cell: (row) => staleness(row.staleness_s, row.owed) },
        { title: "Why", cell: (row) => (row.staleness_s < LATE_S ? "" : why(row.cause)) },
        { title: "Owed", kind: "number", cell: (row) => count(row.owed) },
        { title: "Un-acked", kind: "number extra", cell: (row) => count(row.unacked) },
        { title: "Conflated", kind: "number extra", cell: (row) => count(row.conflated) },
      ],
    },
    summary: (answer) => (answer.behind ? `${plural(answer.behind, "subscription")} behind, of ${count(answer.looked_at)} looked at` : `Of ${plural(answer.looked_at, "subscription")}, none is behind`),
    empty: () => nothing("Everybody has everything.", "A subscription shows here while there is a value that it does not have yet."),
  });
  add(root, el("p", { class: "lead" }, "How old is the oldest thing that a subscriber does not have yet? The one that waits longest is first."), listing.element);
  return () => listing.stop();
}
