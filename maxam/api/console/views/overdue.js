/** Topics that were not updated within what their rule promises. */

import { nothing } from "../dialogs.js";
import { add, cut, el } from "../dom.js";
import { filterBox, Listing } from "../listing.js";
import { age, count, globOf, plural, shownShort, time } from "../text.js";

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  let typed = query.get("glob") ?? "";
  const listing = new Listing({
    route: "overdue",
    rows: "overdue",
    query: () => ({ glob: typed ? globOf(typed) : null }),
    every_ms: 2000,
    table: {
      label: "Overdue topics",
      key: (row) => row.destination,
      open: (row) => {
        location.hash = `#/topics?${new URLSearchParams({ glob: row.destination, topic: row.destination })}`;
      },
      hint: (row) => `Open ${shownShort(row.destination, 100)}`,
      columns: [
        { title: "Destination", kind: "wide", sort: (row) => row.destination, cell: (row) => cut(row.destination) },
        { title: "Overdue for", kind: "number", sort: (row) => row.overdue_s, cell: (row) => age(row.overdue_s) },
        { title: "Age", kind: "number", sort: (row) => row.age_s, cell: (row) => age(row.age_s) },
        { title: "Fresh within", kind: "number extra", cell: (row) => age(row.fresh_within_s) },
        { title: "Last accepted", kind: "extra", cell: (row) => el("time", { datetime: row.accepted_at, title: row.accepted_at }, time(row.accepted_at)) },
        { title: "Publisher", kind: "extra", sort: (row) => row.publisher, cell: (row) => cut(row.publisher) },
        { title: "Revision", kind: "number extra", sort: (row) => row.revision, cell: (row) => count(row.revision) },
      ],
    },
    summary: (answer, rows) => `${plural(answer.count ?? rows.length, "topic")} overdue in all`,
    empty: () => nothing("Nothing is overdue.", "Topics show here when their rule in registry.toml has fresh_within_s, and they were not updated in time."),
  });
  const filter = filterBox({
    label: "Filter by destination",
    placeholder: "Filter: a part of a destination, or a glob",
    value: typed,
    changed: (text) => {
      typed = text;
      remember({ glob: typed });
      listing.restart();
    },
  });
  add(root, el("div", { class: "tools" }, filter), listing.element);
  return () => listing.stop();
}
