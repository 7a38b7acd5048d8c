/** The gateway, your rights on it, and this page. */

import { get } from "../api.js";
import { facts } from "../chart.js";
import { refusal } from "../dialogs.js";
import { add, client, el, fill } from "../dom.js";
import { Poll } from "../link.js";
import { count, time, zone } from "../text.js";

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const list = el("dl", { class: "facts wide" });
  const holder = el("section", { class: "card" }, el("h2", null, "This gateway"), list);
  add(root, holder);
  const poll = new Poll(
    (signal) => get("/v1/about", signal),
    10_000,
    (about) =>
      facts(list, [
        ["Version", String(about.server)],
        ["Core", String(about.core)],
        ["Running since", about.started_at ? el("time", { datetime: about.started_at, title: about.started_at }, time(about.started_at)) : null],
        ["STOMP clients connect to", client(`${about.stomp.host}:${about.stomp.port}, virtual host ${about.stomp.virtual_host}`)],
        ["You are", client(about.principal)],
        ["Your admin rights", about.admin_rights.join(", ")],
        ["Revision", count(about.revision)],
        ["Topics with a value", count(about.topics)],
        ["Tombstones", count(about.tombstones)],
        ["Deletes remembered", count(about.deletes_retained)],
        ["Sessions", count(about.sessions)],
        ["Rejected SENDs held in memory", count(about.rejects_quarantined)],
        ["Rejected SENDs stored", count(about.rejects_stored)],
        ["… not stored: the disk failed", count(about.rejects_failed)],
        ["… not stored: over a principal's rate", count(about.rejects_over_rate)],
        ["… not stored: over the queue", count(about.rejects_over_queue)],
        ["Times are shown in", zone()],
      ]),
    (problem) => fill(holder, refusal(problem)),
  );
  return () => poll.stop();
}
