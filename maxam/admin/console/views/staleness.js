/** Staleness as a bar, a colour, a shape and words. */

import { meter } from "../chart.js";
import { el } from "../dom.js";
import { age } from "../text.js";

export const LATE_S = 1; // what people notice
const BEHIND_S = 10;
const FULL_S = 3600; // of the bar: its scale is logarithmic, from 50 ms

/** Why a subscription lacks something, by the `cause` of the API. */
const CAUSES = /** @type {Record<string, string>} */ ({
  detached: "is away",
  paused: "paused it",
  unacknowledged: "slow to acknowledge",
  unread: "slow to read",
  "catching-up": "catches up",
});

/** @param {string | undefined} cause */
export function why(cause) {
  return cause ? (CAUSES[cause] ?? cause) : "–";
}

/**
 * @param {number | null | undefined} seconds how old the oldest thing is that it does not have; 0: it has everything
 * @param {number} owed topics
 */
export function staleness(seconds, owed) {
  if (seconds === undefined || seconds === null) return el("span", { class: "aside" }, owed ? "is owed" : "–");
  if (seconds <= 0) return meter(0, "ok", "has everything");
  const state = seconds < LATE_S ? "ok" : seconds < BEHIND_S ? "warn" : "bad";
  const share = Math.log(Math.max(1, seconds / 0.05)) / Math.log(FULL_S / 0.05);
  const word = state === "ok" ? "" : state === "warn" ? "▲ " : "■ ";
  return meter(Math.max(0.04, share), state, `${word}${seconds < 0.05 ? "under 0.1 s" : age(seconds)}${state === "ok" ? "" : " behind"}`);
}
