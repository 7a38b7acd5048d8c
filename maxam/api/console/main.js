/** The page: navigation, the state of the link, keys that work everywhere, and one view at a time. */

import { access, get } from "./api.js";
import { say, sheet } from "./dialogs.js";
import { add, el, fill, icon, put } from "./dom.js";
import { link, Poll } from "./link.js";
import { age, time, zone } from "./text.js";
import * as about from "./views/about.js";
import * as audit from "./views/audit.js";
import * as bridges from "./views/bridges.js";
import * as cluster from "./views/cluster.js";
import * as connections from "./views/connections.js";
import * as journal from "./views/journal.js";
import * as overdue from "./views/overdue.js";
import * as overview from "./views/overview.js";
import * as principals from "./views/principals.js";
import * as problems from "./views/problems.js";
import * as rejects from "./views/rejects.js";
import * as schemas from "./views/schemas.js";
import * as sessions from "./views/sessions.js";
import * as slow from "./views/slow.js";
import * as topics from "./views/topics.js";

/**
 * The arguments of a view: where to draw, the part of the address after its name, and a way to change that without a restart.
 * @typedef {object} Place
 * @property {HTMLElement} root
 * @property {URLSearchParams} query
 * @property {(query: Record<string, string>) => void} remember
 */

/**
 * @typedef {object} View
 * @property {string} title
 * @property {import("./dom.js").Icon} icon
 * @property {string} key pressed after `g`
 * @property {(place: Place) => () => void} show draws, and returns what ends it
 */

/** @type {Record<string, View>} */
const VIEWS = {
  overview: { title: "Overview", icon: "overview", key: "o", show: overview.show },
  topics: { title: "Topics", icon: "topics", key: "t", show: topics.show },
  slow: { title: "Slow subscribers", icon: "slow", key: "b", show: slow.show },
  overdue: { title: "Overdue topics", icon: "overdue", key: "d", show: overdue.show },
  bridges: { title: "Bridges", icon: "bridges", key: "l", show: bridges.show },
  cluster: { title: "Second site", icon: "cluster", key: "f", show: cluster.show },
  sessions: { title: "Sessions", icon: "sessions", key: "s", show: sessions.show },
  rejects: { title: "Rejects", icon: "rejects", key: "r", show: rejects.show },
  schemas: { title: "Schemas", icon: "schemas", key: "m", show: schemas.show },
  connections: { title: "Connections", icon: "connections", key: "c", show: connections.show },
  problems: { title: "Cannot connect", icon: "problems", key: "n", show: problems.show },
  principals: { title: "Principals", icon: "principals", key: "p", show: principals.show },
  audit: { title: "Audit log", icon: "audit", key: "u", show: audit.show },
  journal: { title: "Journal and backups", icon: "journal", key: "j", show: journal.show },
  about: { title: "About", icon: "about", key: "a", show: about.show },
};
const THEMES = ["auto", "light", "dark"];
const STATE_EVERY_MS = 250;
const ABOUT_EVERY_MS = 30_000;
const CHORD_MS = 1500;

const root = document.documentElement;
const main = el("main", { id: "main", tabindex: 0 });
const navigation = el("nav", { "aria-label": "Views" });
const pill = el("span", { class: "pill" });
const pillWord = el("span");
const pauseButton = el("button", { type: "button", class: "bare", click: () => link.togglePause() });
const themeButton = el("button", { type: "button", class: "bare", click: () => nextTheme() }, icon("theme"));
const banner = el("div", { class: "banner", hidden: true });
const bannerText = el("span");
const reload = el("div", { class: "banner hint", hidden: true, role: "status" });
const gatewayName = el("span", { class: "gateway" }, location.host);
const links = /** @type {Map<string, HTMLAnchorElement>} */ (new Map());

let viewName = "";
/** @type {(() => void) | null} */
let endView = null;
let version = "";
let started = "";

function build() {
  for (const [name, view] of Object.entries(VIEWS)) {
    const anchor = el("a", { href: `#/${name}`, title: `${view.title} (g ${view.key})` }, icon(view.icon), el("span", null, view.title));
    links.set(name, anchor);
    add(navigation, anchor);
  }
  add(pill, el("span", { class: "dot", "aria-hidden": "true" }), pillWord);
  add(banner, icon("warn"), bannerText, el("button", { type: "button", click: () => link.retryNow() }, "Try now"));
  const bar = el(
    "header",
    { class: "bar" },
    el("a", { class: "brand", href: "#/overview", "aria-label": "maxam, to the overview" }, el("img", { src: "icon.svg", alt: "", width: 26, height: 26 }), el("b", null, "maxam")),
    gatewayName,
    el("span", { class: "gap" }),
    pill,
    pauseButton,
    themeButton,
    el("button", { type: "button", class: "bare", "aria-label": "Keys and help", title: "Keys (?)", click: help }, icon("help")),
  );
  const shell = document.getElementById("shell");
  if (!shell) return;
  fill(shell, bar, el("div", { class: "banners", role: "alert" }, banner), reload, navigation, main, el("div", { id: "toasts", role: "status" }));
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // the address is the view's
    main.focus();
  });
}

/** Show the view that the address names. */
function route() {
  const [, name = "", query = ""] = /^#\/([a-z]*)(?:\?(.*))?$/s.exec(location.hash) ?? [];
  const known = VIEWS[name] ? name : "overview";
  if (location.hash.length > 2 && known !== name) {
    history.replaceState(null, "", `#/${known}`);
    say("There is no view of this address. This is the overview.", "bad");
  }
  const view = /** @type {View} */ (VIEWS[known]);
  endView?.();
  endView = null;
  const cameFrom = viewName;
  viewName = known;
  for (const [one, anchor] of links) {
    if (one === known) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  const current = links.get(known);
  if (current && navigation.scrollWidth > navigation.clientWidth) navigation.scrollLeft = current.offsetLeft - navigation.clientWidth / 2 + current.offsetWidth / 2;
  document.title = `${view.title} – maxam ${location.host}`;
  fill(main, el("h1", null, view.title));
  main.className = `view-${known}`;
  main.scrollTop = 0;
  endView = view.show({
    root: main,
    query: new URLSearchParams(query),
    remember: (parameters) => {
      const words = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "")).toString();
      history.replaceState(null, "", `#/${known}${words ? "?" + words : ""}`);
    },
  });
  if (cameFrom) main.focus({ preventScroll: true }); // so that the next Tab is in what was asked for
}

// How things stand with the gateway.

function tellState() {
  const { state } = link;
  const silent_s = (performance.now() - link.heardAt_ms) / 1000;
  const words = { live: "Live", paused: "Paused", hidden: "Paused", lost: "No connection" };
  put(gatewayName, access.as_of ? `${location.host}, observer as of ${time(access.as_of)}` : location.host);
  put(pillWord, state === "live" ? words.live : `${words[state]}, as of ${time(link.heardAt)}`);
  if (pill.dataset.state !== state) pill.dataset.state = state;
  root.classList.toggle("stale", state !== "live");
  if (state === "lost") {
    const next_s = Math.max(0, (link.retryAt_ms - performance.now()) / 1000);
    banner.hidden = false;
    put(bannerText, `The gateway does not answer. What you see is ${age(Math.floor(silent_s))} old, of ${time(link.heardAt)}. ${next_s > 0 ? `Trying again in ${Math.ceil(next_s)} s.` : "Trying now."}`);
  } else if (!banner.hidden) {
    banner.hidden = true;
    put(bannerText, "");
  }
}

function tellPause() {
  fill(pauseButton, icon(link.paused ? "play" : "pause"));
  const does = link.paused ? "Go on with updates" : "Pause updates";
  pauseButton.setAttribute("aria-label", does);
  pauseButton.title = `${does} (p)`;
  tellState();
}

/** @param {any} answer of /v1/about */
function compareGateway(answer) {
  access.write = answer.admin_rights?.includes("write") ?? true;
  access.enrol = answer.admin_rights?.includes("enrol") ?? false;
  root.classList.toggle("read-only", !access.write);
  const now = String(answer.server ?? "");
  if (version && version !== now) {
    reload.hidden = false;
    fill(reload, icon("about"), el("span", null, `The gateway is another version now (${now}); this page is of ${version}.`), el("button", { type: "button", click: () => location.reload() }, "Load the page again"));
  }
  version ||= now;
  const since = String(answer.started_at ?? "");
  if (started && since && started !== since && reload.hidden) {
    reload.hidden = false;
    fill(reload, icon("about"), el("span", null, `The gateway was restarted at ${time(since)}.`), el("button", { type: "button", click: () => (reload.hidden = true) }, "Understood"));
  }
  started = since || started;
}

// Appearance.

function nextTheme() {
  const now = THEMES.indexOf(root.dataset.theme ?? "auto");
  setTheme(THEMES[(now + 1) % THEMES.length] ?? "auto");
}

/** @param {string} theme */
function setTheme(theme) {
  root.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // a browser that keeps nothing still shows it until the page is closed
  }
  const says = { auto: "as the system has it", light: "light", dark: "dark" }[theme] ?? theme;
  themeButton.setAttribute("aria-label", `Colours: ${says}. Change`);
  themeButton.title = `Colours: ${says}`;
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("theme") ?? "auto";
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

// Keys.

let chordUntil_ms = 0;

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const typing = target.closest?.("input, textarea, select, [contenteditable]");
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector("dialog[open]")) return;
  if (performance.now() < chordUntil_ms) {
    chordUntil_ms = 0;
    const found = Object.entries(VIEWS).find(([, view]) => view.key === event.key);
    if (found) {
      event.preventDefault();
      location.hash = `#/${found[0]}`;
      return;
    }
  }
  if (event.key === "g") chordUntil_ms = performance.now() + CHORD_MS;
  else if (event.key === "?") help();
  else if (event.key === "p") link.togglePause();
  else if (event.key === "/") {
    const filter = /** @type {HTMLInputElement | null} */ (main.querySelector("input.filter"));
    filter?.focus();
    filter?.select();
    if (!filter) return;
  } else if (event.key === "Escape") {
    const close = /** @type {HTMLElement | null} */ (main.querySelector("aside.panel:not([hidden]) header button"));
    close?.click();
  } else return;
  event.preventDefault();
}

function help() {
  /** @type {[string, string][]} */
  const keys = [
    ["?", "this list"],
    ["/", "to the filter"],
    ["p", "pause updates, or go on"],
    ["Esc", "close details, a question, or empty the filter"],
    ["↑ ↓ PgUp PgDn Home End", "from row to row"],
    ["Enter", "open a row"],
    ...Object.values(VIEWS).map((view) => /** @type {[string, string]} */ ([`g ${view.key}`, view.title])),
  ];
  sheet("Keys", el("dl", { class: "keys" }, keys.map(([key, does]) => [el("dt", null, key.split(" ").map((one) => el("kbd", null, one))), el("dd", null, does)]).flat()), el("p", { class: "aside" }, `Times are in ${zone()}; point at one for ISO 8601.`));
}

build();
setTheme(storedTheme());
link.start();
link.addEventListener("change", tellPause);
tellPause();
setInterval(tellState, STATE_EVERY_MS);
window.addEventListener("hashchange", route);
document.addEventListener("keydown", onKey);
route();
const identity = new Poll((signal) => get("/v1/about", signal), ABOUT_EVERY_MS, compareGateway, () => undefined);
link.addEventListener("back", () => identity.again());
link.addEventListener("change", () => {
  if (link.state === "live") identity.again(); // after a pause too: much may have happened
});
