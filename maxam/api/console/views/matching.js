/** The topics whose values satisfy a condition. They are read again every few seconds, as the gateway evaluates each of them. */

import { nothing, refusal } from "../dialogs.js";
import { client, cut, el } from "../dom.js";
import { Listing } from "../listing.js";
import { compact, count, plural, shownShort, time } from "../text.js";

const EVERY_MS = 5000;
const VALUE_CHARACTERS = 300;

/**
 * @param {() => {glob: string, where: string, values: string, pii: string}} query
 * @param {(destination: string) => void} open
 */
export function matching(query, open) {
  return new Listing({
    route: "topics",
    rows: "topics",
    query,
    every_ms: EVERY_MS,
    table: {
      label: "Topics that satisfy the condition",
      key: (row) => row.destination,
      open: (row) => open(row.destination),
      hint: (row) => `Open the topic ${shownShort(row.destination, 200)}`,
      columns: [
        { title: "Topic", cell: (row) => cut(row.destination) },
        { title: "Value", kind: "wide", cell: (row) => (row.value_state === "decoded" ? compact(row.value, VALUE_CHARACTERS) : (row.problem ?? row.value_state)) },
        { title: "Accepted", cell: (row) => el("time", { datetime: row.accepted_at, title: row.accepted_at }, time(row.accepted_at)) },
        { title: "Revision", kind: "number extra", cell: (row) => count(row.revision) },
        { title: "Publisher", kind: "extra", cell: (row) => cut(row.publisher) },
        { title: "Schema", kind: "extra", cell: (row) => (row.schema ? cut(`${row.schema} ${row.schema_version}`) : "–") },
      ],
    },
    summary: (_answer, rows) => `${plural(rows.length, "topic")} found, of those that you may receive`,
    empty: () => nothing("No topic satisfies the condition.", "Topics that your principal may not receive are not searched."),
    refused: (problem) => faulty(problem, query().where),
  });
}

/**
 * A refusal, with the condition and its faulty character.
 * @param {import("../api.js").Problem} problem
 * @param {string} text
 */
function faulty(problem, text) {
  const shown = refusal(problem);
  if (problem.position === undefined) return shown;
  const characters = [...text];
  const at = problem.position - 1;
  const fault = characters[at] ?? " ";
  return el("div", null, shown, el("p", { class: "fault-place" }, client(characters.slice(0, at).join(""), 2000), el("mark", { title: `Character ${problem.position}` }, fault), client(characters.slice(at + 1).join(""), 2000)));
}
