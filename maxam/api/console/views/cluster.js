/** A second site: the gateway that this one follows, and the gateways that follow it. */

import { get } from "../api.js";
import { facts } from "../chart.js";
import { nothing, refusal } from "../dialogs.js";
import { add, badge, client, cut, el, fill } from "../dom.js";
import { Poll } from "../link.js";
import { Table } from "../table.js";
import { age, bytes, count, plural, time } from "../text.js";

const EVERY_MS = 1000;

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const own = el("div", { class: "cards" }, el("p", { class: "loading" }, "Asking the gateway …"));
  const followers = el("div", { class: "place" });
  const summary = el("p", { class: "summary", role: "status" });
  const table = new Table({
    label: "Followers",
    key: (row) => row.address,
    columns: [
      { title: "Follower", kind: "wide", cell: (row) => cut(`${row.principal} (${row.name})`) },
      { title: "Address", kind: "extra", cell: (row) => cut(row.address) },
      { title: "Does", cell: (row) => (row.wish === "copy" ? "copies the journal" : "follows") },
      { title: "Lag", kind: "number", cell: (row) => (row.wish === "copy" ? "–" : row.lag_s === null ? "unknown" : age(row.lag_s)) },
      { title: "Bytes", kind: "number", cell: (row) => bytes(row.lag_bytes) },
      { title: "Changes", kind: "number", cell: (row) => (row.lag_changes === null ? "–" : count(row.lag_changes)) },
      { title: "Heard", cell: (row) => moment(row.heard_at) },
      { title: "Linked for", kind: "extra", cell: (row) => age(row.linked_s) },
      { title: "Version", kind: "extra", cell: (row) => cut(row.software) },
    ],
  });
  add(root, own, el("div", { class: "over" }, summary, table.noRoom), followers);
  const poll = new Poll(
    (signal) => get("/v1/cluster", signal),
    EVERY_MS,
    (answer) => {
      fill(own, cards(answer));
      const rows = answer.followers;
      const said = rows.length ? plural(rows.length, "gateway follows", "gateways follow") + " this one" : "";
      if (summary.textContent !== said) fill(summary, said);
      table.show(rows);
      if (rows.length) {
        if (followers.firstChild !== table.element) fill(followers, table.element);
      } else fill(followers, nothing("No gateway follows this one.", "With [link] in its configuration, a gateway at a second site can follow it and keep the same journal."));
    },
    (problem) => {
      fill(own, refusal(problem));
      fill(summary);
      fill(followers);
    },
  );
  return () => poll.stop();
}

/** @param {string | null} at */
function moment(at) {
  return at ? el("time", { datetime: at, title: at }, time(at)) : "–";
}

/** @param {any} answer of /v1/cluster */
function cards(answer) {
  const observer = answer.role === "observer";
  const own = el("dl", { class: "facts wide" });
  facts(own, [
    ["Role", observer ? badge("idle", "observer: it serves no clients") : badge("ok", "it serves clients")],
    ["State as of", observer ? moment(answer.as_of) : null],
    ["Revision", count(answer.revision)],
    ["Last change accepted", moment(answer.accepted_at)],
    ["Incarnation of the journal", client(answer.incarnation || "none")],
  ]);
  const cards = [el("section", { class: "card" }, el("h2", null, "This gateway"), own)];
  const { source } = answer;
  if (source !== null) {
    const list = el("dl", { class: "facts wide" });
    facts(list, [
      ["Link", link(source)],
      ["Problem", source.problem ? client(source.problem, 500) : null],
      ["Gateway", client(source.name || "unknown")],
      ["Address", client(source.address)],
      ["Linked for", source.linked_s === null ? null : age(source.linked_s)],
      ["Last heard", moment(source.heard_at)],
      ["Lag", `${age(source.lag_s)}, ${plural(source.lag_changes, "change")}`],
      ["Received, not stored yet", bytes(source.lag_bytes)],
      ["Copied", source.state === "copying" ? `${bytes(source.copied_bytes)} of ${bytes(source.copy_bytes)}` : null],
    ]);
    cards.push(el("section", { class: "card" }, el("h2", null, "Its source"), list));
  }
  return cards;
}

/** @param {any} source */
function link(source) {
  switch (source.state) {
    case "following":
      return badge("ok", "follows");
    case "copying":
      return badge("warn", "copies the journal");
    case "refused":
      return badge("bad", `refused: ${source.refused}`);
    default:
      return badge("bad", "no link");
  }
}
