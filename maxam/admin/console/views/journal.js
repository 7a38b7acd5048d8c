/** What is on the disk, and copies of it. */

import { change, get } from "../api.js";
import { facts } from "../chart.js";
import { confirm, nothing, refusal } from "../dialogs.js";
import { add, client, el, fill } from "../dom.js";
import { Poll } from "../link.js";
import { age, bytes, count, time } from "../text.js";

const EVERY_MS = 3000;
const RUNNING_MS = 500; // while a backup is made

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const journal = el("section", { class: "card" }, el("h2", null, "Journal"), el("p", { class: "loading" }, "Asking the gateway …"));
  const backups = el("section", { class: "card" }, el("h2", null, "Backups"), el("p", { class: "loading" }, "Asking the gateway …"));
  add(root, el("div", { class: "cards" }, journal, backups));
  /** @type {Poll<any>[]} */
  const polls = [
    new Poll((signal) => get("/v1/journal", signal), EVERY_MS, (answer) => fill(journal, el("h2", null, "Journal"), described(answer)), (problem) => fill(journal, el("h2", null, "Journal"), refusal(problem))),
    new Poll(
      (signal) => get("/v1/backups", signal),
      EVERY_MS,
      (answer) => {
        const poll = polls[1];
        if (poll) poll.every_ms = answer.backups.some((/** @type {any} */ one) => one.state === "running") ? RUNNING_MS : EVERY_MS;
        if (backups.contains(document.activeElement) && document.activeElement instanceof HTMLButtonElement) {
          const list = backups.querySelector(".backups");
          if (list) fill(list, described(answer));
          return;
        }
        fill(backups, el("h2", null, "Backups"), el("div", { class: "backups" }, described(answer)), el("div", { class: "buttons" }, el("button", { type: "button", click: () => void begin() }, "Make a backup …")));
      },
      (problem) => {
        const off = problem.code === "backup-off";
        if (off) polls[1]?.stop(); // a setting of the start: no need to ask again
        fill(backups, el("h2", null, "Backups"), off ? nothing("No folder for backups is configured.", "With “backups” under [admin] of its configuration the gateway makes them, and keeps the newest.") : refusal(problem));
      },
    ),
  ];
  const begin = () =>
    confirm({
      title: "Make a backup now?",
      text: ["The journal is copied while the broker serves. It takes the disk as long as the journal is large."],
      act: "Make it",
      perform: async () => {
        await change("POST", "/v1/backups");
        polls[1]?.again();
        return "the backup has begun";
      },
    });
  return () => {
    for (const poll of polls) poll.stop();
  };
}

/**
 * An answer of the API as names and values, by the units that its names end in.
 * @param {unknown} answer
 * @returns {Node}
 */
function described(answer) {
  if (Array.isArray(answer)) {
    if (!answer.length) return el("p", { class: "aside" }, "none");
    return el("ol", { class: "plain" }, answer.slice(0, 200).map((one) => el("li", null, described(one))));
  }
  if (answer === null || typeof answer !== "object") return client(String(answer), 300);
  const list = el("dl", { class: "facts wide" });
  facts(list, Object.entries(answer).filter(([name]) => name !== "next").map(([name, value]) => [title(name), shownBy(name, value)]));
  return list;
}

/** @param {string} name */
function title(name) {
  const words = name.replace(/_(s|bytes|at|us)$/, "").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** @param {string} name @param {unknown} value @returns {Node | string} */
function shownBy(name, value) {
  if (value === null) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return described(value);
  if (typeof value === "number") return /bytes/.test(name) ? bytes(value) : /_s$/.test(name) ? (value > 0 && value < 1 ? `${(value * 1000).toFixed(1)} ms` : age(value)) : count(value);
  if (/_at$|as_of/.test(name)) return el("time", { datetime: String(value), title: String(value) }, time(String(value)));
  return client(String(value), 300);
}
