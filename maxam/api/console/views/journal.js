/** The journal on the disk, the state of the disk, and backups. */

import { change, get } from "../api.js";
import { facts } from "../chart.js";
import { action, confirm, nothing, refusal } from "../dialogs.js";
import { add, badge, client, el, fill } from "../dom.js";
import { Poll } from "../link.js";
import { age, briefly, bytes, count, plural, time } from "../text.js";

const EVERY_MS = 3000;
const RUNNING_MS = 500; // while a backup is made

/** @typedef {[string, Node | string | null][]} Facts */

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const journal = el("div", { class: "cards" }, el("p", { class: "loading" }, "Asking the gateway …"));
  const backups = el("section", { class: "card" }, el("h2", null, "Backups"), el("p", { class: "loading" }, "Asking the gateway …"));
  add(root, journal, backups);
  /** @type {Poll<any>[]} */
  const polls = [
    new Poll((signal) => get("/v1/journal", signal), EVERY_MS, (answer) => fill(journal, cards(answer)), (problem) => fill(journal, refusal(problem))),
    new Poll(
      (signal) => get("/v1/backups", signal),
      EVERY_MS,
      (answer) => {
        const poll = polls[1];
        if (poll) poll.every_ms = answer.backups.some((/** @type {any} */ one) => one.state === "running") ? RUNNING_MS : EVERY_MS;
        if (backups.contains(document.activeElement) && document.activeElement instanceof HTMLButtonElement) {
          const list = backups.querySelector(".backups");
          if (list) fill(list, made(answer));
          return;
        }
        fill(backups, el("h2", null, "Backups"), el("div", { class: "backups" }, made(answer)), el("div", { class: "buttons" }, action({ click: () => void begin() }, "Make a backup …")));
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
 * @param {string} heading
 * @param {Facts} told
 * @param {Node | null} [before]
 */
function card(heading, told, before = null) {
  const list = el("dl", { class: "facts wide" });
  facts(list, told);
  return el("section", { class: "card" }, el("h2", null, heading), before, list);
}

/** @param {any} answer of /v1/journal */
function cards(answer) {
  const { segments, open, snapshots, archive, rejected, disk, commits } = answer;
  const states = [disk.full && badge("bad", "full: SENDs are refused"), disk.slow && badge("warn", "slow: SENDs wait"), disk.low && badge("warn", "room is getting short")].filter(Boolean);
  return [
    card(
      "Where it stands",
      [
        ["Newest change accepted", `revision ${count(answer.head)}`],
        ["Newest change on the disk", `revision ${count(answer.committed)}`],
        ["Waiting for the disk", plural(answer.waiting, "operation")],
        ["A receipt says", answer.durability === "fsync" ? "that the value is on the disk" : badge("warn", "nothing of the disk: durability is off, for benchmarks only")],
        ["Folder", client(answer.folder)],
      ],
      answer.problem === null ? null : el("p", null, badge("bad", "The folder could not be read whole"), " ", client(answer.problem, 500)),
    ),
    card("Its disk", [
      ["State", states.length ? el("span", null, states) : badge("ok", "as it should be")],
      ["Free", disk.free_bytes === null ? "unknown" : `${bytes(disk.free_bytes)} of ${bytes(disk.bytes)}`],
      ["Warns below", disk.free_bytes_min ? bytes(disk.free_bytes_min) : "never"],
      [`Commits of the last ${age(commits.over_s)}`, commits.count ? `${count(commits.count)}, each written and synced` : "none"],
      ["… half of them within", commits.count ? briefly(commits.p50_s) : null],
      ["… 99 of 100 within", commits.count ? briefly(commits.p99_s) : null],
      ["… the last one took", commits.count ? briefly(commits.last_s) : null],
    ]),
    card("Segments", [
      ["Sealed", segments.count ? `${plural(segments.count, "segment")}, ${bytes(segments.bytes)}` : "none yet"],
      ["… revisions", segments.count ? `${count(segments.first)} to ${count(segments.last)}` : null],
      ["… changes since", segments.count ? moment(segments.oldest_at) : null],
      ["… until", segments.count ? moment(segments.newest_at) : null],
      ["Being written", open === null ? "none: the next change begins one" : bytes(open.bytes)],
      ["… revisions", open === null ? null : `${count(open.first)} to ${count(open.last)}`],
      ["… since", open === null || open.since === null ? null : moment(open.since)],
      ["Old ones are kept", kept(archive.days_max, archive.bytes_max)],
      ["Indexes", count(answer.indexes)],
      ["Schema texts", count(answer.schemas)],
    ]),
    card("Snapshots, from which a start begins", [
      ["Held", snapshots.count ? `${plural(snapshots.count, "snapshot")}, ${bytes(snapshots.bytes)}` : "none yet: a start reads all segments"],
      ["The newest", snapshots.revision === null ? null : `up to revision ${count(snapshots.revision)}`],
      ["… written", snapshots.written_at === null ? null : el("span", null, moment(snapshots.written_at), `, ${age(snapshots.age_s)} ago`)],
    ]),
    card("Rejected SENDs", [
      ["Stored", rejected.count ? `${plural(rejected.count, "file")}, ${bytes(rejected.bytes)}` : "none"],
      ["… since", rejected.oldest_at === null ? null : moment(rejected.oldest_at)],
      ["Kept", rejected.bytes_max ? kept(rejected.days_max, rejected.bytes_max) : "not at all"],
    ]),
  ];
}

/** @param {any} answer of /v1/backups */
function made(answer) {
  const list = el("dl", { class: "facts wide" });
  facts(list, [
    ["Folder", client(answer.folder)],
    ["Kept", answer.kept === 1 ? "the newest one" : `the newest ${count(answer.kept)}`],
    ["The next", answer.next_at === null ? null : el("span", null, moment(answer.next_at), `, in ${age((Date.parse(answer.next_at) - Date.now()) / 1000)}`)],
    ["To restore one", el("span", null, "stop the gateway, then ", el("code", null, "maxam-admin journal restore BACKUP FOLDER"), ". ", el("code", null, "maxam-admin journal drill"), " tries it out")],
  ]);
  const rows = /** @type {any[]} */ (answer.backups).map((one) =>
    el(
      "li",
      null,
      badge(one.state === "done" ? "ok" : one.state === "failed" ? "bad" : "idle", one.state === "running" ? "being made" : one.state),
      " begun ",
      moment(one.begun_at),
      one.state === "done" ? ` (${age((Date.now() - Date.parse(one.begun_at)) / 1000)} ago)` : null,
      one.revision === null ? null : `, up to revision ${count(one.revision)}`,
      one.bytes === null ? null : `, ${bytes(one.bytes)}`,
      one.files === null ? null : ` in ${plural(one.files, "file")}`,
      one.verified === null ? null : one.verified ? ", verified" : ", not verified",
      one.copied === null ? null : one.copied ? ", copied" : ", not copied",
      one.reason === null ? null : [": ", client(one.reason, 300)],
      el("div", { class: "aside" }, client(one.name)),
    ),
  );
  return el("div", null, list, rows.length ? el("ol", { class: "plain" }, rows) : el("p", { class: "aside" }, "None was made yet."));
}

/** @param {string | null} at */
function moment(at) {
  return at === null ? "unknown" : el("time", { datetime: at, title: at }, time(at));
}

/** @param {number} days @param {number} size 0 is no limit, of either */
function kept(days, size) {
  if (!days && !size) return "for ever";
  return [days ? plural(days, "day") : "", size ? `${bytes(size)} at most` : ""].filter(Boolean).join(", ");
}
