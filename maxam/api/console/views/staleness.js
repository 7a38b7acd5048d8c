/** Staleness as a bar, a colour, a shape and words. */

import { meter } from "../chart.js";
import { age } from "../text.js";

const FAR_S = 60; // behind by more is not a moment's trouble
const FULL_S = 3600; // of the bar: its scale is logarithmic, from 50 ms

/** Why a subscription lacks something, by the `cause` of the API. */
const CAUSES = /** @type {Record<string, string>} */ ({
  detached: "is away",
  paused: "paused it",
  unacknowledged: "slow to acknowledge",
  unread: "slow to read",
  "catching-up": "catches up",
  held: "held by its interval",
});

/**
 * Why a subscription is behind, or what holds its values. Empty otherwise, as what is on its way needs no cause.
 * @param {{behind: boolean, cause: string}} row
 */
export function why(row) {
  return row.behind || row.cause === "held" ? (CAUSES[row.cause] ?? row.cause) : "";
}

/**
 * How bad it is: behind is what the gateway calls so, as everywhere.
 * @param {{staleness_s: number, behind: boolean}} row
 * @returns {"ok" | "warn" | "bad"}
 */
export function lateness(row) {
  return !row.behind ? "ok" : row.staleness_s < FAR_S ? "warn" : "bad";
}

/**
 * @param {{staleness_s: number, behind: boolean, cause?: string}} row of a subscription or a session. staleness_s is the age of the oldest thing that
 *     it does not have, 0 if it has everything
 */
export function staleness(row) {
  const seconds = row.staleness_s;
  if (seconds <= 0) return meter(0, "ok", row.cause === "held" ? "waits for its interval" : "has everything");
  const state = lateness(row);
  const share = Math.log(Math.max(1, seconds / 0.05)) / Math.log(FULL_S / 0.05);
  const word = state === "ok" ? "" : state === "warn" ? "▲ " : "■ ";
  return meter(Math.max(0.04, share), state, `${word}${seconds < 0.05 ? "under 0.1 s" : age(seconds)}${state === "ok" ? "" : " behind"}`);
}
