/**
 * The stream of a window of topics (`GET /v1/live`, server-sent events), read by fetch: EventSource hides why it was refused, and
 * cannot be made to wait.
 */

import { Problem, path, problemOf } from "./api.js";
import { link } from "./link.js";

const SILENCE_MAX_MS = 25_000; // it pings every 10 s: after this the connection is dead, whatever TCP believes
const EVENT_CHARACTERS_MAX = 4_000_000;

/**
 * A row as the stream sends it. One with a `value_state` is whole. One without has the changes of a row that was sent before.
 * @typedef {object} TopicRow
 * @property {string} destination
 * @property {number} revision
 * @property {string} accepted_at
 * @property {number} age_s when it was sent
 * @property {string} publisher
 * @property {string} encoding
 * @property {string} schema
 * @property {string} schema_version
 * @property {number} body_bytes
 * @property {number} [updates] since the topic was made in this process
 * @property {"decoded" | "raw" | "undecoded" | "withheld"} [value_state]
 * @property {unknown} [value]
 * @property {string} [body] base64
 * @property {string} [problem] why it is not decoded
 * @property {boolean} [pii_masked] fields marked personal were left out
 */

/**
 * The topics of the window, all of them in order, and those rows that were not sent yet.
 * @typedef {object} Rows
 * @property {string[]} destinations
 * @property {TopicRow[]} rows
 * @property {boolean} more
 * @property {boolean} complete false while the search for them goes on
 * @property {number} looked_at
 * @property {number} topics in all
 * @property {string} as_of
 */

/** @typedef {{count: number, count_complete: boolean, topics: number}} Count of the topics that the glob matches, in all */
/** @typedef {{rows: TopicRow[], as_of: string}} Changes */
/** @typedef {{glob: string, after: string | null, rows: number, every_ms: number, pii: boolean}} Window */

/**
 * @typedef {object} Told
 * @property {(rows: Rows, window: Window) => void} rows
 * @property {(changes: Changes) => void} changes
 * @property {(count: Count) => void} count
 * @property {(since: Record<string, string>) => void} unknown topics of the window whose link is down, and since when
 * @property {(problem: Problem) => void} refused
 */

/** One window at a time; another one replaces it. Stops while the link does not ask, and goes on by itself. */
export class Live {
  /** @type {Window | null} */
  #window = null;
  /** @type {AbortController | null} */
  #underWay = null;
  #stopped = new AbortController();

  /** @param {Told} told */
  constructor(told) {
    this.told = told;
    link.addEventListener("change", () => this.#look(), { signal: this.#stopped.signal });
  }

  /** @param {Window} window */
  look(window) {
    this.#window = window;
    this.#underWay?.abort();
    this.#underWay = null;
    this.#look();
  }

  /** Follow nothing until `look` is called again. */
  rest() {
    this.#window = null;
    this.#underWay?.abort();
    this.#underWay = null;
  }

  stop() {
    this.#stopped.abort();
    this.#underWay?.abort();
    this.#underWay = null;
  }

  #look() {
    if (this.#stopped.signal.aborted) return;
    if (document.hidden || link.paused) {
      this.#underWay?.abort();
      this.#underWay = null;
    } else if (this.#window && !this.#underWay && link.asking) void this.#follow(this.#window);
  }

  /** @param {Window} window */
  async #follow(window) {
    const turn = new AbortController();
    this.#underWay = turn;
    /** @type {number | undefined} */
    let silence;
    const hear = () => {
      clearTimeout(silence);
      silence = setTimeout(() => turn.abort(new Problem(0, "lost", "silence")), SILENCE_MAX_MS);
    };
    try {
      hear();
      const response = await fetch(path(["v1", "live"], { ...window, pii: window.pii ? "true" : "" }), {
        headers: { accept: "text/event-stream" },
        cache: "no-store",
        redirect: "error",
        signal: turn.signal,
      });
      if (!response.ok || !response.body) throw await problemOf(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const events = new Events();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        hear();
        link.heard();
        for (const [name, data] of events.feed(value)) {
          if (turn.signal.aborted) return;
          if (data === "") continue; // only how long to wait, or a comment
          const event = JSON.parse(data);
          if (name === "rows") this.told.rows(event, window);
          else if (name === "changes") this.told.changes(event);
          else if (name === "count") this.told.count(event);
          else if (name === "unknown") this.told.unknown(event.since);
          else if (name === "ended" && event.error !== "stopping") throw new Problem(403, event.error, event.detail);
        }
      }
      throw new Problem(0, "lost", "the stream ended");
    } catch (error) {
      const replaced = this.#underWay !== turn;
      if (!replaced) this.#underWay = null;
      const silent = turn.signal.reason instanceof Problem;
      if (replaced || (turn.signal.aborted && !silent)) return;
      const problem = error instanceof Problem ? error : new Problem(0, "lost", String(error));
      if (problem.lost && !(error instanceof Problem) && error instanceof SyntaxError) throw error;
      link.failed(problem);
      if (!problem.lost) this.told.refused(problem);
    } finally {
      clearTimeout(silence);
    }
  }
}

/** Takes server-sent events apart, whatever pieces they come in. */
export class Events {
  #rest = "";

  /**
   * @param {string} piece
   * @returns {[string, string][]} name and data of each event that is complete now
   */
  feed(piece) {
    const text = this.#rest + piece.replaceAll("\r\n", "\n");
    const blocks = text.split("\n\n");
    this.#rest = blocks.pop() ?? "";
    if (this.#rest.length > EVENT_CHARACTERS_MAX) throw new Problem(0, "lost", "an event without end");
    return blocks.map((block) => {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon < 1) continue; // a comment
        const field = line.slice(0, colon);
        const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
        if (field === "event") name = value;
        else if (field === "data") data.push(value);
      }
      return [name, data.join("\n")];
    });
  }
}
