/** The page of the venue floor: a live grid of machines, a filter that becomes a selector, and a slider for the rate. */

import { Client, type Entry, type LiveMap, MaxamError } from "@maxam/client";
import type { EGMStatus_v1 } from "./egm-status.ts";

const STATES = {
  idle: { sign: "", selector: "gamePlay.state = 'IDLE'" },
  credited: { sign: "$", selector: "gamePlay.state = 'CREDITED'" },
  playing: { sign: "▶", selector: "gamePlay.state = 'PLAYING'" },
  feature: { sign: "★", selector: "gamePlay.state = 'FEATURE'" },
  attention: { sign: "!", selector: "doors[0].open OR lockUps[0] IS NOT NULL OR faults[0].code IS NOT NULL" },
  offline: { sign: "×", selector: "NOT communications.online" },
} as const;
type State = keyof typeof STATES;
// The fields that the page shows. The rest of a status is not sent.
const FIELDS = [
  "from.egmElectronicId",
  "from.floorPosition",
  "gamePlay",
  "doors.open",
  "lockUps",
  "faults.text",
  "communications.online",
];
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const INTERVALS_MS = [0, 100, 250, 500, 1000, 2000, 5000];

function element<E extends HTMLElement>(id: string): E {
  return document.getElementById(id) as E;
}

const client = new Client({
  url: new URL("/stomp", location.href.replace(/^http/, "ws")).href,
  async ticket(signal) {
    const answer = await fetch("/ticket", { method: "POST", signal });
    if (answer.status === 401) throw new MaxamError("signed-out", "Sign in again."); // final: only a person can help
    if (!answer.ok) throw new Error(`the backend answered ${answer.status}`);
    return answer.text();
  },
});

// The map that is shown, and the one that takes its place once it is complete.
let shown: LiveMap<EGMStatus_v1> | undefined;
let next: LiveMap<EGMStatus_v1> | undefined;
let selected = "";
let arrivals = 0;
let agesMs: number[] = [];
const tiles = new Map<string, HTMLButtonElement>(); // each machine that was ever seen keeps its place
const banks = new Map<string, HTMLElement>();
const changed = new Set<string>();

function subscribe(): void {
  const selector = element<HTMLInputElement>("filter").value.trim() || undefined;
  const minIntervalMs = INTERVALS_MS[element<HTMLInputElement>("interval").valueAsNumber] || undefined;
  if (next !== shown) next?.close();
  const map = client.values<EGMStatus_v1>("X/EGM.*.EGMStatus", { selector, minIntervalMs, fields: FIELDS });
  next = map;
  map.on("update", (changes) => {
    for (const { kind, topic, entry } of changes) {
      if (map === shown) changed.add(topic);
      if (kind !== "value" || !entry?.acceptedAt || !map.synced) continue;
      arrivals += 1;
      agesMs.push(Date.now() - entry.acceptedAt);
    }
    requestAnimationFrame(draw);
  });
  map.on("sync", () => {
    if (map !== next) return;
    if (shown !== map) shown?.close();
    shown = map;
    problem("");
    status();
    for (const topic of [...tiles.keys(), ...map.keys()]) changed.add(topic);
    requestAnimationFrame(draw);
  });
  map.on("state", (state) => {
    // A refused filter leaves the floor as it was.
    if (state.status === "closed" && state.error && map === next) problem(state.error.message);
    status();
  });
}

function stateOf({ doors, lockUps, faults, communications, gamePlay }: EGMStatus_v1): State {
  if (!communications.online) return "offline";
  if (doors.some(({ open }) => open) || lockUps.length || faults.length) return "attention";
  const found = gamePlay.state.toLowerCase();
  return found in STATES ? (found as State) : "idle";
}

/** Bring everything that changed since the last frame to the screen. */
function draw(): void {
  if (changed.size === 0) return;
  for (const topic of changed) drawMachine(topic, shown?.get(topic));
  changed.clear();
  const counts = new Map<State, number>();
  let cents = 0;
  for (const { value } of shown?.values() ?? []) {
    const state = stateOf(value);
    counts.set(state, (counts.get(state) ?? 0) + 1);
    cents += Math.round(Number(value.gamePlay.creditBalance) * 100);
  }
  for (const count of document.querySelectorAll<HTMLElement>("#states b")) {
    count.textContent = `${counts.get(count.dataset.state as State) ?? 0}`;
  }
  element("shown").textContent = `${shown?.size ?? 0}`;
  element("credit").textContent = `$${Math.round(cents / 100).toLocaleString("en")}`;
  describe();
}

function drawMachine(topic: string, entry: Entry<EGMStatus_v1> | undefined): void {
  const tile = tiles.get(topic) ?? (entry && newTile(topic, entry.value.from.floorPosition ?? "?"));
  if (tile === undefined) return;
  const state = entry && stateOf(entry.value);
  tile.className = `machine ${state ?? "away"} ${entry?.stale ? "stale" : ""}`;
  tile.dataset.sign = state ? STATES[state].sign : "";
  const [text] = tile.children as unknown as [HTMLElement];
  const credit = entry && Number(entry.value.gamePlay.creditBalance) ? `$${entry.value.gamePlay.creditBalance.split(".")[0]}` : "";
  if (text.textContent !== credit) {
    text.textContent = credit;
    if (entry && !STILL.matches) tile.animate([{ outlineColor: "var(--accent)" }, { outlineColor: "transparent" }], 600);
  }
}

function newTile(topic: string, position: string): HTMLButtonElement {
  const letter = position.slice(0, 1);
  const bank = banks.get(letter) ?? document.createElement("div");
  if (!banks.has(letter)) {
    bank.className = "bank";
    bank.append(Object.assign(document.createElement("b"), { textContent: letter }));
    banks.set(letter, bank);
    element("floor").append(...[...banks].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, one]) => one));
  }
  const tile = document.createElement("button");
  tile.type = "button";
  tile.append(document.createElement("span"));
  tile.dataset.number = position.slice(1);
  tile.setAttribute("aria-label", position);
  tile.style.gridColumn = `${Number(position.slice(1)) + 1}`;
  tile.onclick = () => {
    tiles.get(selected)?.removeAttribute("aria-current");
    selected = topic;
    tile.setAttribute("aria-current", "true");
    describe();
  };
  tiles.set(topic, tile);
  const after = [...bank.children].find((one) => one instanceof HTMLElement && (one.dataset.number ?? "") > position.slice(1));
  bank.insertBefore(tile, after ?? null);
  return tile;
}

function describe(): void {
  const entry = shown?.get(selected);
  if (entry === undefined) {
    element("machine").textContent = selected ? "The filter does not match this machine now." : "Select a machine.";
    return;
  }
  const { from, gamePlay, faults, lockUps } = entry.value;
  const game = gamePlay.gameId?.split(":")[0]?.replaceAll("-", " ");
  const parts = [from.floorPosition, `machine ${from.egmElectronicId}`, game, gamePlay.state.toLowerCase(), `$${gamePlay.creditBalance}`];
  const trouble = [...faults.map(({ text }) => text), ...lockUps.map((one) => one.toLowerCase().replace("_", " "))];
  element("machine").textContent = [...parts, ...trouble, `revision ${entry.revision}`].filter(Boolean).join(" · ");
}

function problem(text: string): void {
  element("problem").hidden = text === "";
  element("problem").textContent = text;
  element("filter").setAttribute("aria-invalid", `${text !== ""}`);
}

function status(): void {
  const { state } = client;
  const live = state.status === "connected" && shown?.synced;
  element("connection").className = live ? "live" : state.status;
  const reason = state.error ? `: ${state.error.code}` : "";
  element("connection").textContent = live ? "live" : `${state.status}${reason}`;
}

function filterBy(selector: string): void {
  element<HTMLInputElement>("filter").value = selector;
  for (const button of document.querySelectorAll<HTMLElement>("#states button")) {
    button.setAttribute("aria-pressed", `${button.dataset.selector === selector}`);
  }
  subscribe();
}

for (const [state, { sign, selector }] of Object.entries(STATES)) {
  const button = document.createElement("button");
  const icon = Object.assign(document.createElement("i"), { className: state, textContent: sign });
  const count = Object.assign(document.createElement("b"), { textContent: "0" });
  count.dataset.state = state;
  button.type = "button";
  button.dataset.selector = selector;
  button.setAttribute("aria-pressed", "false");
  button.append(icon, state, count);
  button.onclick = () => filterBy(button.getAttribute("aria-pressed") === "true" ? "" : selector);
  const item = document.createElement("li");
  item.append(button);
  element("states").append(item);
}

let pause: ReturnType<typeof setTimeout> | undefined;
element("controls").addEventListener("submit", (event) => event.preventDefault());
element("filter").addEventListener("input", (event) => {
  clearTimeout(pause);
  pause = setTimeout(() => filterBy((event.target as HTMLInputElement).value), 400);
});
element("interval").addEventListener("input", () => {
  const ms = INTERVALS_MS[element<HTMLInputElement>("interval").valueAsNumber] ?? 0;
  element("interval-text").textContent = ms ? `${ms / 1000} s` : "at once";
  clearTimeout(pause);
  pause = setTimeout(subscribe, 200);
});
client.on("state", status);
setInterval(() => {
  // The median of a second.
  agesMs.sort((a, b) => a - b);
  element("rate").textContent = `${arrivals}`;
  element("age").textContent = agesMs.length ? `${Math.max(0, agesMs[agesMs.length >> 1] ?? 0)} ms` : "-";
  arrivals = 0;
  agesMs = [];
}, 1000);
subscribe();
