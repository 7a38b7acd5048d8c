/** Subscriptions that are behind, the one that waits longest first; or all that do not have everything. */

import { nothing } from "../dialogs.js";
import { add, cut, el } from "../dom.js";
import { Listing } from "../listing.js";
import { age, count, plural, shownShort } from "../text.js";
import { staleness, why } from "./staleness.js";

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  const all = el("input", {
    type: "checkbox",
    checked: query.get("all") === "yes",
    change: () => {
      remember({ all: all.checked ? "yes" : "" });
      listing.restart();
    },
  });
  const listing = new Listing({
    route: "subscriptions/slow",
    rows: "subscriptions",
    single: true,
    query: () => ({ limit: 100, min_s: all.checked ? 0 : null }),
    every_ms: 1000,
    table: {
      label: "Subscriptions, the worst first",
      key: (row) => JSON.stringify([row.principal, row.client_id, row.id]),
      open: (row) => {
        location.hash = `#/sessions?${new URLSearchParams({ principal: row.principal, client_id: row.client_id })}`;
      },
      hint: (row) => `Open the session ${shownShort(row.client_id, 60)} of ${shownShort(row.principal, 60)}`,
      columns: [
        { title: "Principal", sort: (row) => row.principal, cell: (row) => cut(row.principal) },
        { title: "Client-id", sort: (row) => row.client_id, cell: (row) => cut(row.client_id) },
        { title: "Subscription", kind: "wide aside-narrow", sort: (row) => row.glob, cell: (row) => cut(row.glob) },
        { title: "Staleness", sort: (row) => row.staleness_s, cell: (row) => staleness(row) },
        { title: "Why", cell: (row) => why(row) },
        { title: "Owed", kind: "number", sort: (row) => row.owed, cell: (row) => count(row.owed) },
        { title: "Un-acked", kind: "number extra", sort: (row) => row.unacked, cell: (row) => count(row.unacked) },
        { title: "Conflated", kind: "number extra", sort: (row) => row.conflated, cell: (row) => count(row.conflated) },
      ],
    },
    summary: (answer) => `${count(answer.behind)} of ${plural(answer.looked_at, "subscription")} behind by more than ${age(answer.behind_after_s)}`,
    empty: () => (all.checked ? nothing("All subscriptions have everything.", "A subscription shows here while there is a value that it does not have yet.") : nothing("No subscription is behind.", "A subscription shows here once it has lacked a value for longer than lag_threshold_s of the gateway's configuration. Values lacked for less are on their way.")),
  });
  const box = el("label", { class: "personal", title: "Values on their way are no reason to worry: a value that changes all the time is always missing somewhere for a moment" }, all, "All that lack anything now");
  add(root, el("p", { class: "lead" }, "How old is the oldest thing that a subscriber does not have yet? The one that waits longest is first."), el("div", { class: "tools" }, box), listing.element);
  return () => listing.stop();
}
