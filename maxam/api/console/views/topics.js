/** Live values by glob, and one topic in detail. */

import { change, get, Problem, topicPath } from "../api.js";
import { facts } from "../chart.js";
import { action, confirm, nothing, refusal } from "../dialogs.js";
import { add, client, el, fill, put } from "../dom.js";
import { Grid } from "../grid.js";
import { filterBox, Panel, personalBox } from "../listing.js";
import { matching } from "./matching.js";
import { link, Poll } from "../link.js";
import { age, bytes, count, globOf, plural, shownLines, shownShort, time } from "../text.js";

const HISTORY = 50;

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  let typed = query.get("glob") ?? "";
  let where = query.get("where") ?? "";
  let fields = (query.get("fields") ?? "").split(",").filter((name) => name);
  let pii = false;
  const said = el("span", { class: "count", role: "status" });
  const refused = el("div");
  const empty = el("div");
  const chooser = el("div", { class: "choices" });
  const columns = el("details", { class: "chooser" }, el("summary", null, "Columns"), chooser);
  const panel = new Panel();

  const grid = new Grid({
    open: (destination) => open(destination),
    status: () => {
      if (where) return;
      put(said, grid.said);
      if (!grid.empty) fill(empty);
      else if (!empty.firstChild) fill(empty, nothing("No topic with a value matches.", typed ? "A text finds destinations that hold it; * stands for any run of characters." : "As soon as a client sends one, it shows here."));
    },
    refused: (problem) => {
      if (where) return;
      fill(refused, problem && refusal(problem));
      grid.element.hidden = problem !== null && problem.status !== 429 && problem.status !== 503;
    },
    changed: (row) => detail?.changed(row.destination, row.revision),
  });

  const filter = filterBox({
    label: "Filter topics by destination",
    placeholder: "Filter: a part of a destination, or a glob such as X/EGM.*.EGMStatus",
    value: typed,
    hint: "A text finds destinations that contain it. With a / it finds those that begin so. With * ? [ ] it is a glob",
    changed: (text) => {
      if (text === typed) return;
      typed = text;
      begin();
    },
  });
  const condition = filterBox({
    label: "Filter topics by their values",
    placeholder: "Condition, such as status = 'ONLINE' AND meters.turnover > 1000",
    value: where,
    hint: "A selector over the fields of values, as clients use it to subscribe. header('name') is a header",
    changed: (text) => {
      if (text.trim() === where) return;
      where = text.trim();
      begin();
    },
  });
  /** @type {import("../listing.js").Listing<any> | null} */
  let found = null;
  const matches = el("div");
  const keep = () => remember({ glob: typed, fields: fields.join(","), where });
  const look = () => {
    found?.stop();
    found = null;
    fill(matches);
    fill(refused);
    fill(empty);
    put(said, "");
    grid.element.hidden = where !== "";
    columns.hidden = where !== "";
    if (!where) {
      grid.look(globOf(typed), pii);
      return;
    }
    grid.live.rest();
    found = matching(() => ({ glob: globOf(typed), where, values: "true", pii: String(pii) }), (destination) => open(destination));
    add(matches, found.element);
  };
  const begin = () => {
    keep();
    look();
  };

  columns.addEventListener("toggle", () => {
    if (!columns.open) return;
    const names = [...new Set([...fields, ...grid.paths()])];
    fill(
      chooser,
      el("p", { class: "aside" }, names.length ? "Fields of the values on the screen, up to eight, each a column of its own:" : "There is no decoded value on the screen."),
      names.map((name) => {
        const box = el("input", { type: "checkbox" });
        box.checked = fields.includes(name);
        box.addEventListener("change", () => {
          fields = box.checked ? [...fields, name].slice(-8) : fields.filter((one) => one !== name);
          grid.columns(fields);
          keep();
        });
        return el("label", null, box, client(name, 80));
      }),
      el("button", { type: "button", class: "quiet", click: () => {
        fields = [];
        grid.columns(fields);
        keep();
        columns.open = false;
      } }, "Whole value"),
    );
  });
  columns.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !columns.open) return;
    event.stopPropagation();
    columns.open = false;
    columns.querySelector("summary")?.focus();
  });
  const personal = personalBox((wanted) => {
    pii = wanted;
    begin();
    detail?.again();
  });

  /** @type {ReturnType<typeof showTopic> | null} */
  let detail = null;
  /** @param {string} destination */
  const open = (destination) => {
    detail?.stop();
    const topic = showTopic(destination, () => pii);
    panel.show(client(destination, 600), [topic.element], () => {
      topic.stop();
      detail = null;
    });
    detail = topic;
  };

  add(
    root,
    el("div", { class: "tools" }, filter, condition, columns, personal, said, grid.noRoom),
    refused,
    el("p", { id: "grid-keys", hidden: true }, "Arrow keys and Page keys go from row to row, Enter opens one."),
    el("div", { class: "split" }, el("div", { class: "list" }, grid.element, empty, matches), panel.element),
  );
  filter.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      grid.focus();
      grid.scroller.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" })); // marks the first row, or the next one
    }
  });
  if (fields.length) grid.columns(fields);
  look();
  const wanted = query.get("topic");
  if (wanted) open(wanted);
  return () => {
    detail?.stop();
    found?.stop();
    grid.stop();
  };
}

/**
 * One topic: the value in full, headers, history, and what can be done to it.
 * @param {string} destination
 * @param {() => boolean} pii whether personal fields were asked for
 */
function showTopic(destination, pii) {
  const body = el("div", { class: "topic" }, el("p", { class: "loading" }, "Asking the gateway …"));
  const list = el("dl", { class: "facts" });
  const ageText = el("span");
  const value = el("div");
  const past = el("div", { class: "history" });
  let shownRevision = -1;
  let newest = 0;
  let told_ms = 0;
  let told_s = 0;
  const poll = new Poll(
    (signal) => get(topicPath("topics", destination, { pii: String(pii()) }), signal),
    3_600_000, // it is asked again when the grid hears of a newer revision
    (row) => display(row),
    (problem) => {
      fill(body, problem.status === 404 ? nothing("This topic has no value.", "It was deleted, or never set. Its history may have more.") : refusal(problem));
      if (problem.status === 404) add(body, past, historyButton());
    },
  );
  /** @type {number | undefined} */
  let soon;
  const ticking = setInterval(() => put(ageText, age(told_s + Math.max(0, link.shownAt_ms - told_ms) / 1000)), 200);

  /** @param {any} row */
  const display = (row) => {
    newest = Math.max(newest, row.revision);
    told_ms = performance.now();
    told_s = row.age_s ?? Math.max(0, (Date.now() - Date.parse(row.accepted_at)) / 1000);
    facts(list, [
      ["Age", ageText],
      ["Accepted", el("time", { datetime: row.accepted_at, title: row.accepted_at }, time(row.accepted_at))],
      ["Revision", count(row.revision)],
      ["Publisher", client(row.publisher, 200)],
      ["Certificate", row.fingerprint ? el("span", { class: "hex" }, row.fingerprint) : null],
      ["Encoding", row.encoding],
      ["Schema", row.schema ? el("a", { href: `#/schemas?${new URLSearchParams({ type: row.schema })}` }, client(`${row.schema} ${row.schema_version}`, 200)) : "none"],
      ["Size", bytes(row.body_bytes)],
      ["Updates", row.updates === undefined ? null : `${count(row.updates)} since the gateway started`],
      ["Unknown", row.unknown_since ? el("span", { class: "warn" }, `since ${time(row.unknown_since)}, as its link is down`) : null],
      ["Fresh within", row.fresh_within_s === undefined || row.fresh_within_s === null ? null : age(row.fresh_within_s)],
    ]);
    if (row.revision === shownRevision) return;
    shownRevision = row.revision;
    fill(value, ...valueOf(row));
    if (!list.isConnected) {
      fill(
        body,
        el("h3", null, "Value"),
        value,
        el("h3", null, "About it"),
        list,
        el("h3", null, "History"),
        past,
        historyButton(),
        el("div", { class: "buttons" }, action({ class: "danger quiet", click: () => void remove() }, "Delete …")),
      );
    }
  };

  const historyButton = () => el("button", { type: "button", class: "quiet", click: () => void readHistory(null) }, "Read its changes from the journal");
  /** @param {number | null} before */
  const readHistory = async (before) => {
    const button = body.querySelector(".history + button");
    if (button instanceof HTMLButtonElement) button.disabled = true;
    try {
      const answer = await get(topicPath("history", destination, { limit: HISTORY, before, pii: String(pii()) }));
      button?.remove();
      if (before === null) fill(past);
      past.querySelector("button")?.remove();
      if (!answer.changes.length && before === null) add(past, el("p", { class: "aside" }, "The journal holds no change of it."));
      add(past, answer.changes.map((/** @type {any} */ one) => change1(one)));
      if (answer.next !== null && answer.next !== undefined) add(past, el("button", { type: "button", class: "quiet", click: () => void readHistory(answer.next) }, "Older ones"));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      link.failed(error);
      fill(past, refusal(error));
      if (button instanceof HTMLButtonElement) button.disabled = false;
    }
  };

  const remove = () =>
    confirm({
      title: "Delete this topic?",
      text: ["An empty SEND of your own principal removes its value for every subscriber. This cannot be undone. Its publisher may set it again.", "The topic:"],
      type: destination,
      act: "Delete",
      perform: async () => {
        await change("DELETE", topicPath("topics", destination));
        poll.again();
        return `${shownShort(destination, 80)} is deleted`;
      },
    });

  return {
    element: body,
    /** @param {string} name @param {number} revision */
    changed(name, revision) {
      if (name !== destination || revision <= newest) return;
      newest = revision;
      soon ??= setTimeout(() => {
        soon = undefined;
        poll.again();
      }, 700); // a busy topic is read often enough
    },
    /** Ask once more, as with another answer to what may be shown. */
    again() {
      shownRevision = -1;
      fill(past);
      if (list.isConnected && !body.querySelector(".history + button")) past.after(historyButton());
      poll.again();
    },
    stop() {
      poll.stop();
      clearInterval(ticking);
      clearTimeout(soon);
    },
  };
}

/** @param {any} one change of the history */
function change1(one) {
  const what = one.deleted ? "deleted" : one.value_state === "decoded" ? null : one.value_state;
  return el(
    "details",
    { class: "change" },
    el("summary", null, el("b", null, count(one.revision)), " ", el("time", { datetime: one.accepted_at, title: one.accepted_at }, time(one.accepted_at)), " by ", client(one.publisher, 60), what ? ` (${what})` : ""),
    ...(one.deleted ? [] : valueOf(one)),
  );
}

/**
 * A value with its headers, whatever became of it.
 * @param {any} row
 * @returns {Node[]}
 */
export function valueOf(row) {
  /** @type {Node[]} */
  const parts = [];
  if (row.pii_masked) parts.push(el("p", { class: "aside" }, "Fields marked personal are hidden: “Personal data” above shows them."));
  if (row.value_state === "decoded") parts.push(json(row.value));
  else if (row.value_state === "withheld") parts.push(el("p", { class: "aside" }, "Withheld: your principal may not receive this topic."));
  else {
    parts.push(el("p", { class: "aside" }, "Not decoded: ", client(row.problem ?? "no reason given", 300), "."));
    if (typeof row.body === "string") parts.push(hex(row.body));
  }
  const headers = /** @type {[string, string][]} */ (row.headers ?? []);
  if (headers.length) parts.push(el("table", { class: "headers" }, el("caption", null, "Headers"), el("tbody", null, headers.map(([name, text]) => el("tr", null, el("th", { scope: "row" }, client(name, 100)), el("td", null, client(text, 300)))))));
  return parts;
}

const JSON_CHARACTERS = 4000;

/** @param {unknown} value */
export function json(value) {
  const text = shownLines(JSON.stringify(value, null, 2) ?? "null");
  const block = el("pre", { class: "json client", tabindex: 0, role: "group", "aria-label": "Value" });
  /** @param {string} part */
  const paint = (part) => {
    fill(block);
    // Strings in full, then names, numbers and words: each a text in a coloured span.
    for (const [whole, name, word] of part.matchAll(/("(?:[^"\\]|\\.)*")(?=:)|((?:"(?:[^"\\]|\\.)*")|-?\d[\d.eE+-]*|true|false|null)|[^"\d-]+|./gs)) {
      add(block, name ? el("span", { class: "key" }, name) : word ? el("span", { class: word[0] === '"' ? "string" : "word" }, word) : whole);
    }
  };
  paint(text.slice(0, JSON_CHARACTERS));
  if (text.length <= JSON_CHARACTERS) return block;
  const more = el("button", { type: "button", class: "more" }, `All ${count(text.length)} characters`);
  more.addEventListener("click", () => {
    block.textContent = text;
    more.remove();
    block.focus();
  });
  return el("div", null, block, more);
}

const HEX_BYTES = 512;

/** @param {string} base64 */
export function hex(base64) {
  const body = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  /** @param {Uint8Array} part */
  const dump = (part) => {
    const lines = [];
    for (let at = 0; at < part.length; at += 16) {
      const row = [...part.subarray(at, at + 16)];
      const digits = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
      const letters = row.map((one) => (one > 32 && one < 127 ? String.fromCharCode(one) : "·")).join("");
      lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
    }
    return lines.join("\n");
  };
  const block = el("pre", { class: "hexdump", tabindex: 0, role: "group", "aria-label": plural(body.length, "byte") }, dump(body.subarray(0, HEX_BYTES)));
  if (body.length <= HEX_BYTES) return block;
  const more = el("button", { type: "button", class: "more" }, `All ${count(body.length)} bytes`);
  more.addEventListener("click", () => {
    block.textContent = dump(body);
    more.remove();
    block.focus();
  });
  return el("div", null, block, more);
}
