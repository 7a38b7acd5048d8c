/** Why a subscription does not have the newest value of a topic: a question under the subscriptions of a session. */

import { get } from "../api.js";
import { facts } from "../chart.js";
import { refusal } from "../dialogs.js";
import { add, client, el, fill, put } from "../dom.js";
import { Poll } from "../link.js";
import { age, briefly, count, plural, shownShort, time } from "../text.js";

/** The text of each `code` of the API. */
const TEXTS = /** @type {Record<string, (answer: any) => string>} */ ({
  "no-match": () => "The glob of the subscription does not match the topic.",
  "no-right": () => "The principal may not receive the topic.",
  "no-topic": () => "The broker has no value of the topic.",
  pending: () => "The SUBSCRIBE, or a right that was granted, has not taken effect yet.",
  undisclosed: () => "The answer depends on the value, which your principal may not receive.",
  filtered: (answer) => (answer.deleted ? "The topic was deleted, and the client has no value of it." : "The newest value does not satisfy the selector."),
  unacknowledged: (answer) => `Revision ${count(answer.sent_revision)} was sent and is not acknowledged. Nothing newer exists.`,
  superseded: (answer) => `Revision ${count(answer.sent_revision)} was sent and is not acknowledged. Revision ${count(answer.revision)} waits for that ACK.`,
  detached: (answer) => `The change is owed. The client has been away for ${age(answer.since_s)}.`,
  paused: () => "The change is owed. The client is connected and has not subscribed again.",
  closing: () => "The change is owed. The connection is about to end.",
  unchanged: () => "The client has a value with the same body, and subscribed with changes-only.",
  held: (answer) => `The change is owed. The interval of the topic ends in ${age(answer.left_s)}.`,
  "window-full": (answer) => `The change is owed. The client must first acknowledge some of ${plural(answer.in_flight, "message")}.`,
  ready: (answer) => `The change is sent as soon as the client reads, after ${answer.place === null ? "many topics" : plural(answer.place, "other topic")}.`,
  writing: (answer) => `Revision ${count(answer.sent_revision)} was handed to the connection. It is not proven that it was written.`,
  scanning: () => "The scan for the current values has not reached the topic.",
  older: () => "The change is older than the subscription, which did not ask for current values.",
  acknowledged: () => "Not owed: the client has acknowledged everything that was routed to the subscription.",
  "handed-out": () => "Not owed: everything that is routed to it was handed out.",
});

/**
 * The question, whose answer is kept up to date.
 * @param {{principal: string, client_id: string}} session
 */
export function whyMissing(session) {
  const which = el("select", { "aria-label": "Subscription" });
  const topic = el("input", { type: "text", class: "filter", placeholder: "Destination of a topic", autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-label": "Destination of a topic" });
  const answer = el("div", { role: "status" });
  const said = el("p");
  const list = el("dl", { class: "facts" });
  /** @type {Poll<any> | null} */
  let poll = null;
  const stop = () => {
    poll?.stop();
    poll = null;
  };
  const ask = () => {
    stop();
    fill(answer);
    if (!topic.value || !which.value) return;
    // Not by `path`, which leaves out an empty id.
    const query = new URLSearchParams({ principal: session.principal, client_id: session.client_id, id: JSON.parse(which.value), destination: topic.value });
    poll = new Poll(
      (signal) => get(`/v1/subscriptions/explain?${query}`, signal),
      1500,
      (row) => {
        if (!list.isConnected) fill(answer, said, list);
        put(said, TEXTS[row.code]?.(row) ?? row.code);
        facts(list, [
          ["Cause", row.code],
          ["Newest change", row.revision === null ? null : `revision ${count(row.revision)}${row.deleted ? ", a delete" : ""}`],
          ["Accepted", row.accepted_at === null ? null : el("time", { datetime: row.accepted_at, title: row.accepted_at }, time(row.accepted_at))],
          ["Sent", row.sent_revision === null ? null : `revision ${count(row.sent_revision)}`],
          ["Window", row.window === null ? null : `${count(row.in_flight)} of ${count(row.window)} un-acked`],
          ["Window full for", row.code === "window-full" && row.since_s !== null ? age(row.since_s) : null],
          ["Selector", row.refinement?.selector ? client(row.refinement.selector, 300) : null],
        ]);
      },
      (problem) => fill(answer, refusal(problem)),
    );
  };
  const form = el(
    "form",
    {
      class: "tools",
      submit: (event) => {
        event.preventDefault();
        ask();
      },
    },
    which,
    topic,
    el("button", { type: "submit", class: "quiet" }, "Explain"),
  );
  const element = el("section", { hidden: true }, el("h3", null, "Why is a value missing?"), form, answer);
  let known = "";
  return {
    element,
    /** @param {{id: string, glob: string}[]} rows the subscriptions of the session */
    show(rows) {
      const names = JSON.stringify(rows.map((row) => [row.id, row.glob]));
      element.hidden = rows.length === 0;
      if (names === known) return;
      known = names;
      const chosen = which.value;
      fill(which);
      for (const row of rows) add(which, el("option", { value: JSON.stringify(row.id) }, `${shownShort(row.id, 40)}: ${shownShort(row.glob, 80)}`));
      if ([...which.options].some((one) => one.value === chosen)) which.value = chosen;
      else {
        stop();
        fill(answer);
      }
    },
    stop,
  };
}

/**
 * The headers that refine a subscription, in words. Empty without any.
 * @param {any} refinement
 * @returns {(Node | string)[]}
 */
export function refined(refinement) {
  if (!refinement) return [];
  const words = [];
  if (refinement.min_interval_ms) words.push(`one value of a topic in ${briefly(refinement.min_interval_ms / 1000)}`);
  if (refinement.changes_only) words.push("changes only");
  if (refinement.markers) words.push("markers");
  if (refinement.metadata) words.push("metadata");
  if (refinement.format) words.push(refinement.format.toUpperCase());
  if (refinement.fields.length) words.push(`the fields ${refinement.fields.join(", ")}`);
  const parts = refinement.selector ? ["selector ", client(refinement.selector, 300), words.length ? ", " : ""] : [];
  return [...parts, words.join(", ")];
}
