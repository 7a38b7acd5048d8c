/** The sessions, the topics owed to each, and for how long it has waited. */

import { change, get, path, sessionPath } from "../api.js";
import { facts } from "../chart.js";
import { action, confirm, nothing, refusal } from "../dialogs.js";
import { add, badge, client, cut, el, fill } from "../dom.js";
import { filterBox, Listing, Panel } from "../listing.js";
import { Poll } from "../link.js";
import { age, count, plural, shownShort, time } from "../text.js";
import { refined, whyMissing } from "./explain.js";
import { staleness, why } from "./staleness.js";

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  let typed = query.get("find") ?? "";
  const panel = new Panel();
  /** @type {(() => void) | null} */
  let end = null;

  const listing = new Listing({
    route: "sessions",
    rows: "sessions",
    query: () => ({ find: typed }),
    every_ms: 2000,
    table: {
      label: "Sessions",
      key: (row) => JSON.stringify([row.principal, row.client_id]),
      open: (row) => open(row.principal, row.client_id),
      hint: (row) => `Open the session ${shownShort(row.client_id, 60)} of ${shownShort(row.principal, 60)}`,
      columns: [
        { title: "Principal", sort: (row) => row.principal, cell: (row) => cut(row.principal) },
        { title: "Client-id", sort: (row) => row.client_id, cell: (row) => cut(row.client_id) },
        { title: "Staleness", sort: (row) => row.staleness_s, cell: (row) => staleness(row) },
        { title: "State", cell: (row) => (row.connected ? badge("ok", "connected") : badge("idle", row.durable ? "away, durable" : "away")) },
        { title: "Owed", kind: "number", sort: (row) => row.owed, cell: (row) => count(row.owed) },
        { title: "Un-acked", kind: "number extra", sort: (row) => row.unacked, cell: (row) => count(row.unacked) },
        { title: "Window", kind: "number extra", sort: (row) => row.window, cell: (row) => count(row.window) },
        { title: "Conflated", kind: "number extra", sort: (row) => row.conflated, cell: (row) => count(row.conflated) },
        { title: "Subscriptions", kind: "number extra", sort: (row) => row.subscriptions, cell: (row) => count(row.subscriptions) },
        { title: "Since", kind: "extra", sort: (row) => row.connected_at, cell: (row) => (row.connected_at ? el("time", { datetime: row.connected_at, title: row.connected_at }, time(row.connected_at)) : "–") },
        { title: "From", kind: "extra", sort: (row) => row.peer, cell: (row) => cut(row.peer ?? "–") },
      ],
    },
    summary: (_answer, rows) => {
      const connected = rows.filter((row) => row.connected).length;
      return `${plural(rows.length, "session")}, ${connected} of them connected`;
    },
    empty: () => (typed ? nothing("No session matches.", "A text finds sessions that hold it in principal, client-id or address.") : nothing("No sessions.", "A client has one as soon as it connects.")),
  });
  const filter = filterBox({
    label: "Filter sessions by principal, client-id or address",
    placeholder: "Filter: principal, client-id or address",
    value: typed,
    changed: (text) => {
      typed = text;
      remember({ find: typed });
      listing.restart();
    },
  });

  /** @param {string} principal @param {string} clientId */
  const open = (principal, clientId) => {
    const one = showSession({ principal, client_id: clientId }, () => listing.refresh());
    panel.show(el("span", null, client(principal, 100), " / ", client(clientId, 128)), [one.element], () => one.stop());
    end = one.stop;
  };
  add(root, el("div", { class: "tools" }, filter), el("div", { class: "split" }, el("div", { class: "list" }, listing.element), panel.element));
  const principal = query.get("principal");
  const clientId = query.get("client_id");
  if (principal !== null && clientId !== null) open(principal, clientId);
  return () => {
    end?.();
    listing.stop();
  };
}

/**
 * @param {{principal: string, client_id: string}} session
 * @param {() => void} changed
 */
function showSession(session, changed) {
  const list = el("dl", { class: "facts" });
  const subscriptions = el("div");
  const kick = action({ class: "quiet", click: () => void ask("kick") }, "Disconnect …");
  const drop = action({ class: "danger quiet", click: () => void ask("drop") }, "End the session …");
  const question = whyMissing(session);
  const body = el("div", null, list, el("h3", null, "Subscriptions"), subscriptions, question.element, el("div", { class: "buttons" }, kick, drop));
  const holder = el("div", null, el("p", { class: "loading" }, "Asking the gateway …"));
  const poll = new Poll(
    (signal) => read(session, signal),
    1500,
    ({ row, rows }) => {
      if (!body.isConnected) fill(holder, body);
      kick.disabled = !row.connected;
      facts(list, [
        ["State", row.connected ? badge("ok", "connected") : badge("idle", "away")],
        ["Staleness", staleness(row)],
        ["Connected since", row.connected_at ? el("time", { datetime: row.connected_at, title: row.connected_at }, time(row.connected_at)) : null],
        ["From", row.peer ? client(row.peer) : null],
        ["Certificate", row.fingerprint ? el("span", { class: "hex" }, row.fingerprint) : null],
        ["Window", row.window === null ? null : `${count(row.window)} un-acked messages`],
        ["Un-acked", count(row.unacked)],
        ["Owed", plural(row.owed, "topic")],
        ["Conflated", row.conflated === undefined ? null : plural(row.conflated, "change")],
        ["Durable", row.durable ? "yes: it outlives its connection" : "no"],
      ]);
      fill(subscriptions, rows.length ? rows.map(subscription) : el("p", { class: "aside" }, "It has none."));
      question.show(rows);
    },
    (problem) => fill(holder, problem.status === 404 ? nothing("This session is gone.", "It ended, or was not durable and its connection closed.") : refusal(problem)),
  );

  /** @param {"kick" | "drop"} what */
  const ask = (what) =>
    confirm(
      what === "kick"
        ? {
            title: "Disconnect this session?",
            text: ["Its connection is closed with an ERROR that gives this reason. The session stays, and most clients connect again at once."],
            act: "Disconnect",
            perform: async () => {
              await change("POST", sessionPath(session, "kick"));
              changed();
              return `${shownShort(session.client_id, 60)} was disconnected`;
            },
          }
        : {
            title: "End this session?",
            text: ["Its durable subscriptions go with it, and what they are owed. Its client begins from nothing when it connects again. This cannot be undone."],
            type: session.client_id,
            act: "End it",
            perform: async () => {
              await change("DELETE", sessionPath(session));
              poll.again();
              changed();
              return `the session ${shownShort(session.client_id, 60)} has ended`;
            },
          },
    );

  return {
    element: holder,
    stop: () => {
      poll.stop();
      question.stop();
    },
  };
}

/**
 * A session, with its subscriptions from the route with most details.
 * @param {{principal: string, client_id: string}} session
 * @param {AbortSignal} signal
 */
async function read(session, signal) {
  const row = await get(sessionPath(session), signal);
  const listed = await get(path(["v1", "subscriptions"], { ...session, limit: 100 }), signal).catch((problem) => {
    if (problem.status === 404) return null;
    throw problem;
  });
  return { row, rows: listed?.subscriptions ?? row.subscriptions };
}

/** @param {any} one */
function subscription(one) {
  return el(
    "section",
    { class: "subscription" },
    el("h4", null, client(one.glob, 300)),
    el("p", null, "id ", client(one.id, 100), `, ${one.ack === "auto" ? "ack auto" : one.ack === "" ? "nothing is delivered now" : one.ack === "client" ? "acknowledges" : "acknowledges each"}`, one.durable ? ", durable" : ""),
    staleness(one),
    el(
      "p",
      { class: "aside" },
      `${plural(one.owed, "topic")} owed`,
      one.oldest_owed_s ? `, the oldest for ${age(one.oldest_owed_s)}` : "",
      `; ${count(one.unacked)} un-acked`,
      one.oldest_unacked_s ? `, the oldest for ${age(one.oldest_unacked_s)}` : "",
      `; ${count(one.conflated)} conflated`,
      why(one) ? `. Why: ${why(one)}` : "",
    ),
    one.refinement && el("p", { class: "aside" }, "Refined: ", ...refined(one.refinement)),
  );
}
