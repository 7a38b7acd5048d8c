/** The start page: health, traffic, slow subscribers, expiries. */

import { get, path } from "../api.js";
import { LineChart, meter } from "../chart.js";
import { refusal } from "../dialogs.js";
import { add, client, cut, el, fill, icon, put } from "../dom.js";
import { Poll } from "../link.js";
import { age, bytes, count, plural, rate, shownShort, time } from "../text.js";
import { lateness, staleness } from "./staleness.js";

const WORST = 6;
const DAY_S = 86_400;

/** @param {import("../main.js").Place} place */
export function show({ root }) {
  const health = new Health();
  const traffic = new Traffic();
  const behind = new Behind();
  const overdue = new Overdue();
  const tiles = el("div", { class: "tiles" }, behind.tile.element, overdue.tile.element, traffic.rejects.element, health.tiles);
  add(
    root,
    health.hero,
    tiles,
    el("div", { class: "charts" }, traffic.sends.element, traffic.messages.element),
    el("div", { class: "cards" }, behind.card, traffic.hot, traffic.busy, health.due),
  );
  const polls = [
    new Poll((signal) => get("/v1/health", signal), 2000, (answer) => health.show(answer), (problem) => health.fail(problem)),
    new Poll((signal) => get("/v1/rates", signal), 2000, (answer) => health.rejecting(traffic.show(answer)), (problem) => health.rejecting(traffic.fail(problem))),
    new Poll((signal) => get(path(["v1", "subscriptions", "slow"], { limit: WORST }), signal), 1500, (answer) => behind.show(answer), (problem) => behind.fail(problem)),
    new Poll((signal) => get(path(["v1", "overdue"], { limit: 1 }), signal), 3000, (answer) => overdue.show(answer), () => overdue.tile.show("–", "idle")),
  ];
  return () => {
    for (const poll of polls) poll.stop();
  };
}

/** One figure, with its meaning, that leads to the details. */
class Tile {
  #figure = el("span", { class: "figure" }, "–");
  #below = el("span", { class: "below" });

  /** @param {string} title @param {string} [href] */
  constructor(title, href) {
    this.element = el(href ? "a" : "div", { class: "tile", ...(href ? { href } : {}) }, el("span", { class: "name" }, title), this.#figure, this.#below);
  }

  /** @param {string} figure @param {"ok" | "warn" | "bad" | "idle"} state @param {string} [below] */
  show(figure, state, below = "") {
    put(this.#figure, figure);
    put(this.#below, below);
    this.element.dataset.state = state;
  }
}

class Health {
  hero = el("section", { class: "hero", "aria-label": "Health" }, el("p", { class: "loading" }, "Asking the gateway …"));
  topics = new Tile("Topics", "#/topics");
  connections = new Tile("Connections", "#/connections");
  sessions = new Tile("Sessions", "#/sessions");
  problems = new Tile("Cannot connect", "#/problems");
  disk = new Tile("Disk free", "#/journal");
  backup = new Tile("Last backup", "#/journal");
  memory = new Tile("Memory");
  tiles = [this.topics.element, this.sessions.element, this.connections.element, this.problems.element, this.disk.element, this.backup.element, this.memory.element];
  #list = el("ul", { class: "due" });
  due = el("section", { class: "card" }, el("h2", null, "In force, and until when"), this.#list);
  #said = "";
  /** @type {boolean | null} */
  #rejecting = false;
  /** @type {any} */
  #answer = null;

  /**
   * Text of the head about everything below it. It may not be "healthy" while another part is not.
   * @param {boolean | null} rejecting whether SENDs are being rejected, null if not known
   */
  rejecting(rejecting) {
    this.#rejecting = rejecting;
    if (this.#answer) this.#tell(this.#answer);
  }

  /** @param {any} answer */
  #tell(answer) {
    const words = /** @type {Record<string, [string, "ok" | "warn" | "bad"]>} */ ({
      ready: ["All is well", "ok"],
      degraded: ["The gateway is in service, but something should be seen to", "warn"],
      "not ready": ["The gateway is not fully in service", "bad"],
    });
    const reasons = [...answer.reasons, ...answer.degraded];
    /** @type {[string, string][]} */
    const concerns = [];
    if (answer.behind) concerns.push([`${plural(answer.behind, "subscription")} behind`, "#/slow"]);
    if (answer.overdue) concerns.push([`${plural(answer.overdue, "topic")} overdue`, "#/overdue"]);
    if (this.#rejecting === null) concerns.push(["Whether SENDs are being rejected is not known", "#/rejects"]);
    else if (this.#rejecting) concerns.push(["SENDs are being rejected", "#/rejects"]);
    if (!reasons.length && this.#list.querySelector("li:not(.ok)")) concerns.push(["Something expires soon, or was not done: it stands below", ""]);
    const [word, state] = answer.status === "ready" && concerns.length ? /** @type {const} */ (["The gateway is healthy. There are warnings below.", "warn"]) : (words[answer.status] ?? [String(answer.status), "bad"]);
    const said = JSON.stringify([answer.status, reasons, concerns, answer.server]);
    if (said !== this.#said) {
      this.#said = said;
      this.hero.dataset.state = state;
      fill(
        this.hero,
        icon(state),
        el("div", null, el("p", { class: "word", role: "status" }, word), reasons.length + concerns.length ? el("ul", null, reasons.map((reason) => el("li", null, client(reason, 500))), concerns.map(([text, href]) => el("li", null, href ? el("a", { href }, text) : text))) : null, el("p", { class: "aside" }, `${answer.server}, ${answer.core} core, running since `, el("time", { datetime: answer.started_at, title: answer.started_at }, time(answer.started_at)))),
      );
    }
  }

  /** @param {any} answer */
  show(answer) {
    const { figures, disk, connections, memory } = answer;
    this.memory.show(bytes(memory.used_bytes), memory.low ? "warn" : "idle", `of ${bytes(memory.limit_bytes)}`);
    this.topics.show(count(figures.topics), "idle", `revision ${count(figures.revision)}`);
    this.sessions.show(count(figures.sessions), "idle");
    this.connections.show(count(connections.connected), "idle", `and ${connections.operators} of operators${connections.connecting ? `, ${connections.connecting} connecting` : ""}`);
    this.problems.show(count(connections.problems), "idle", connections.problems === 1 ? "client of the last hour" : "clients of the last hour");
    this.disk.show(bytes(disk.free_bytes), disk.full ? "bad" : disk.low || disk.slow ? "warn" : "idle", disk.full ? "full: SENDs are refused" : disk.slow ? "the disk is slow" : `journal ${bytes(disk.journal_bytes)}`);
    this.#backup(answer.backup);
    fill(this.#list, this.#expiries(answer.expiries), this.#items(answer.reload), this.#audit(answer.audit));
    this.#answer = answer;
    this.#tell(answer);
  }

  /** @param {any} backup null when the gateway makes none */
  #backup(backup) {
    if (!backup) this.backup.show("–", "idle", "the gateway makes none");
    else if (backup.age_s === null) this.backup.show("none", "warn", backup.failure ? "the last attempt failed" : "none was made yet");
    else {
      const concern = backup.failure ? "the last attempt failed" : backup.copied === false ? "not copied" : backup.verified ? "" : "not verified";
      this.backup.show(age(backup.age_s), concern ? "warn" : "idle", concern || `ago, ${bytes(backup.bytes)}`);
    }
  }

  /** @param {any[]} expiries */
  #expiries(expiries) {
    const names = /** @type {Record<string, string>} */ ({ certificate: "The gateway's certificate", authority: "Authority", crl: "Revocation list of" });
    return expiries.slice(0, 6).map((one) => {
      const state = one.expires_s < 3 * DAY_S ? "bad" : one.expires_s < 21 * DAY_S && one.what !== "crl" ? "warn" : "ok";
      const words = one.expires_s < 0 ? `expired ${age(-one.expires_s)} ago` : `expires in ${age(one.expires_s)}`;
      return el("li", { class: state }, icon(state), el("span", null, names[one.what] ?? one.what, one.name ? [" ", client(one.name, 80)] : null), el("time", { datetime: one.expires_at, title: one.expires_at }, words));
    });
  }

  /** @param {any[]} items */
  #items(items) {
    return items.map((one) =>
      el("li", { class: one.failure ? "bad" : "ok" }, icon(one.failure ? "bad" : "ok"), el("span", null, `Reload of ${one.item}`, one.failure ? [": ", client(one.failure, 300)] : null), el("time", { datetime: one.loaded_at, title: one.loaded_at }, `${one.failure ? "refused; in force since" : "in force since"} ${time(one.loaded_at)}`)),
    );
  }

  /** @param {any} audit */
  #audit(audit) {
    const bad = Boolean(audit.failure) || audit.lost > 0;
    return el("li", { class: bad ? "bad" : "ok" }, icon(bad ? "bad" : "ok"), el("span", null, "Audit log", audit.failure ? [": ", client(audit.failure, 300)] : null), el("span", null, `${plural(audit.written, "line")} written, ${count(audit.lost)} lost`));
  }

  /** @param {import("../api.js").Problem} problem */
  fail(problem) {
    this.#said = "";
    this.#answer = null;
    delete this.hero.dataset.state;
    fill(this.hero, refusal(problem));
  }
}

class Traffic {
  sends = new LineChart("SENDs accepted", "per second", "one");
  messages = new LineChart("MESSAGEs delivered", "per second", "two");
  rejects = new Tile("Rejected", "#/rejects");
  #hot = el("ol", { class: "ranking" });
  #busy = el("ol", { class: "ranking" });
  hot = el("section", { class: "card" }, el("h2", null, "Hot topics"), this.#hot);
  busy = el("section", { class: "card" }, el("h2", null, "Busy sessions"), this.#busy);

  /**
   * @param {any} answer
   * @returns {boolean} whether SENDs are being rejected
   */
  show(answer) {
    this.rejects.show(rate(answer.rejects_per_s), answer.rejects_per_s > 0 ? "warn" : "ok", "SENDs a second");
    const history = /** @type {[string | number, number, number][]} */ (answer.history ?? []);
    const at = history.map((one) => (typeof one[0] === "number" ? one[0] * (one[0] < 1e11 ? 1000 : 1) : Date.parse(one[0])));
    this.sends.show(history.map((one, index) => [at[index] ?? 0, one[1]]));
    this.messages.show(history.map((one, index) => [at[index] ?? 0, one[2]]));
    const hot = /** @type {any[]} */ (answer.hot_topics ?? []).slice(0, 8);
    const most = Math.max(...hot.map((one) => one.updates_per_s), 0);
    fill(this.#hot, hot.map((one) => el("li", null, el("a", { href: `#/topics?${new URLSearchParams({ glob: one.destination, topic: one.destination })}` }, cut(one.destination)), meter(one.updates_per_s / most, "ok", `${one.updates_per_s < 100 ? one.updates_per_s.toFixed(1) : rate(one.updates_per_s)}/s`))));
    if (!hot.length) add(this.#hot, el("li", { class: "aside" }, "No topic is updated now."));
    const busy = /** @type {any[]} */ (answer.busy_sessions ?? []).slice(0, 8);
    fill(this.#busy, busy.map((one) => el("li", null, el("a", { href: sessionHref(one) }, cut(one.principal), el("span", { class: "aside" }, " / "), cut(one.client_id)), el("span", { class: "said" }, `${rate(one.sends_per_s)} in, ${rate(one.messages_per_s)} out`))));
    if (!busy.length) add(this.#busy, el("li", { class: "aside" }, "No session sends or receives now."));
    return answer.rejects_per_s > 0;
  }

  /** @param {import("../api.js").Problem} problem */
  fail(problem) {
    this.rejects.show("–", "idle");
    fill(this.#hot, el("li", null, problem.what));
    fill(this.#busy, el("li", null, problem.what));
    return null;
  }
}

/** @param {{principal: string, client_id: string}} one */
function sessionHref(one) {
  return `#/sessions?${new URLSearchParams({ principal: one.principal, client_id: one.client_id })}`;
}

class Behind {
  tile = new Tile("Behind", "#/slow");
  #list = el("ol", { class: "ranking behind" });
  card = el("section", { class: "card" }, el("h2", null, el("a", { href: "#/slow" }, "Slow subscribers")), this.#list);
  #said = "";

  /** @param {any} answer */
  show(answer) {
    const worst = answer.subscriptions[0];
    this.tile.show(count(answer.behind), worst ? lateness(worst) : "ok", worst ? `the oldest by ${age(worst.staleness_s)}` : `of ${plural(answer.looked_at, "subscription")}`);
    const said = JSON.stringify(answer.subscriptions);
    if (said === this.#said) return;
    this.#said = said;
    const focused = [...this.#list.querySelectorAll("a")].indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
    const rows = /** @type {any[]} */ (answer.subscriptions).slice(0, WORST);
    fill(this.#list, rows.map((one) => el("li", null, el("a", { href: sessionHref(one), title: shownShort(one.glob, 300) }, cut(one.principal), el("span", { class: "aside" }, " / "), cut(one.client_id)), staleness(one))));
    if (!rows.length) add(this.#list, el("li", { class: "aside" }, "No subscription is behind."));
    if (focused >= 0) this.#list.querySelectorAll("a")[focused]?.focus();
  }

  /** @param {import("../api.js").Problem} problem */
  fail(problem) {
    this.#said = "";
    fill(this.#list, el("li", null, problem.what));
  }
}

class Overdue {
  tile = new Tile("Overdue", "#/overdue");

  /** @param {any} answer */
  show(answer) {
    const number = answer.count ?? answer.overdue.length;
    this.tile.show(count(number), number ? "bad" : "ok", number === 1 ? "topic" : "topics");
  }
}
