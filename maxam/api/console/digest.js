/**
 * A value in one line, the most telling parts first. The order is: fields that change, fields in which topics of one schema differ,
 * lists, and the rest. Empty fields and times come last: the age has a column of its own. Values that came while the page was open show which
 * fields change.
 */

import { compact, leaves, shownShort } from "./text.js";

const SCHEMAS_MAX = 100;
const LEAVES_MAX = 80;
const CHARACTERS_MAX = 260;
const TIME = /^\d{4}-\d\d-\d\dT/;

/** @typedef {{moving: Set<string>, differing: Set<string>, last: Map<string, unknown>}} Learned */

export class Digest {
  /** @type {Map<string, Learned>} */
  #learned = new Map();

  /**
   * @param {string} schema
   * @param {unknown} before the value of the same topic before, or undefined
   * @param {unknown} value
   */
  learn(schema, before, value) {
    let learned = this.#learned.get(schema);
    const now = leaves(value, LEAVES_MAX);
    if (!learned) {
      if (this.#learned.size >= SCHEMAS_MAX) this.#learned.clear();
      learned = { moving: new Set(), differing: new Set(), last: now };
      this.#learned.set(schema, learned);
    }
    if (before === undefined) note(learned.differing, learned.last, now);
    else note(learned.moving, leaves(before, LEAVES_MAX), now);
    learned.last = now;
  }

  /**
   * @param {string} schema
   * @param {unknown} value
   * @returns {string}
   */
  text(schema, value) {
    const learned = this.#learned.get(schema);
    if (!learned || value === null || typeof value !== "object" || Array.isArray(value)) return compact(value, CHARACTERS_MAX);
    /** @type {string[][]} */
    const ranks = [[], [], [], [], []];
    for (const [path, leaf] of leaves(value, LEAVES_MAX)) {
      ranks[rank(learned, path, leaf)]?.push(`${path.slice(path.lastIndexOf(".") + 1)}: ${compact(leaf, 80)}`);
    }
    return shownShort(ranks.flat().join(" · "), CHARACTERS_MAX);
  }
}

/** @param {Learned} learned @param {string} path @param {unknown} leaf */
function rank(learned, path, leaf) {
  if (leaf === null || leaf === "" || (Array.isArray(leaf) && leaf.length === 0) || (typeof leaf === "string" && TIME.test(leaf))) return 4;
  if (Array.isArray(leaf)) return 2; // long, and mostly the same
  return learned.moving.has(path) ? 0 : learned.differing.has(path) ? 1 : 3;
}

/** @param {Set<string>} paths @param {Map<string, unknown>} before @param {Map<string, unknown>} now */
function note(paths, before, now) {
  for (const [path, value] of now) {
    if (paths.size >= LEAVES_MAX || paths.has(path)) continue;
    const other = before.get(path);
    if (other !== value && JSON.stringify(other) !== JSON.stringify(value)) paths.add(path);
  }
}
