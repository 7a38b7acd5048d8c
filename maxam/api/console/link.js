/**
 * The state of this page against its gateway, on which everything that is shown depends. Is it asked at all (the operator may pause, a
 * hidden tab asks nothing)? Does it answer? When did it last? Is it still the gateway that the page came from?
 */

import { Problem } from "./api.js";

const RETRY_S = [1, 2, 4, 8, 15];

/** @typedef {"live" | "paused" | "hidden" | "lost"} State */

class Link extends EventTarget {
  paused = false;
  lost = false;
  /** When the last answer came, by the page's own clock, which never jumps. */
  heardAt_ms = performance.now();
  /** The same as a time of day. */
  heardAt = Date.now();
  /** When it is tried again, while it is lost. */
  retryAt_ms = 0;
  /** @type {number | undefined} */
  #retry;
  #failures = 0;

  /** @returns {State} */
  get state() {
    if (document.hidden) return "hidden";
    if (this.paused) return "paused";
    return this.lost ? "lost" : "live";
  }

  /** Whether the gateway shall be asked now. */
  get asking() {
    return !document.hidden && !this.paused && (!this.lost || performance.now() >= this.retryAt_ms);
  }

  /** Now, or when what is on the screen stopped being kept up to date: ages are reckoned to here. By the page's own clock. */
  get shownAt_ms() {
    return this.state === "live" ? performance.now() : this.heardAt_ms;
  }

  start() {
    document.addEventListener("visibilitychange", () => this.#tell());
    window.addEventListener("online", () => this.retryNow());
  }

  togglePause() {
    this.paused = !this.paused;
    this.#tell();
  }

  /** Something came. */
  heard() {
    this.heardAt_ms = performance.now();
    this.heardAt = Date.now();
    this.#failures = 0;
    if (!this.lost) return;
    this.lost = false;
    clearTimeout(this.#retry);
    this.#tell();
    this.dispatchEvent(new Event("back"));
  }

  /**
   * A request failed. Only one without any answer is about the link.
   * @param {unknown} error
   */
  failed(error) {
    if (!(error instanceof Problem)) return;
    if (!error.lost) {
      this.heard();
      return;
    }
    if (this.lost && performance.now() < this.retryAt_ms) return;
    this.lost = true;
    const seconds = RETRY_S[Math.min(this.#failures, RETRY_S.length - 1)] ?? 15;
    this.#failures += 1;
    // Not all tabs of a venue at the same moment when its gateway is back.
    this.retryAt_ms = performance.now() + seconds * 1000 * (0.8 + Math.random() * 0.4);
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#tell(), this.retryAt_ms - performance.now() + 5);
    this.#tell();
  }

  retryNow() {
    if (!this.lost) return;
    this.retryAt_ms = 0;
    this.#tell();
  }

  #tell() {
    this.dispatchEvent(new Event("change"));
  }
}

export const link = new Link();

/**
 * Asks again and again while a view is shown and the link is asking.
 * @template T
 */
export class Poll {
  #stopped = new AbortController();
  /** @type {AbortController | null} */
  #underWay = null;
  /** @type {number | undefined} */
  #next;
  #due_ms = 0;

  /**
   * @param {(signal: AbortSignal) => Promise<T>} load
   * @param {number} every_ms from one answer to the next question
   * @param {(answer: T) => void} show
   * @param {(problem: Problem) => void} fail with the gateway's refusal. The page itself shows a lost link
   */
  constructor(load, every_ms, show, fail) {
    this.load = load;
    this.every_ms = every_ms;
    this.show = show;
    this.fail = fail;
    link.addEventListener("change", () => this.#look(), { signal: this.#stopped.signal });
    this.#look();
  }

  /** Ask at once, for whatever `load` asks for now; an answer under way to an older question is dropped. */
  again() {
    this.#underWay?.abort();
    this.#underWay = null;
    this.#due_ms = 0;
    this.#look();
  }

  stop() {
    this.#stopped.abort();
    this.#underWay?.abort();
    clearTimeout(this.#next);
  }

  #look() {
    clearTimeout(this.#next);
    if (!link.asking) {
      this.#underWay?.abort();
      this.#underWay = null;
      return;
    }
    if (this.#stopped.signal.aborted || this.#underWay) return;
    const wait_ms = link.lost ? 0 : this.#due_ms - performance.now();
    if (wait_ms > 0) this.#next = setTimeout(() => this.#look(), wait_ms);
    else void this.#ask();
  }

  async #ask() {
    const turn = new AbortController();
    this.#underWay = turn;
    try {
      const answer = await this.load(turn.signal);
      if (turn.signal.aborted) return;
      link.heard();
      this.show(answer); // which may change how soon it is asked again
      this.#due_ms = performance.now() + this.every_ms;
    } catch (error) {
      if (turn.signal.aborted) return;
      this.#due_ms = performance.now() + this.every_ms;
      if (!(error instanceof Problem)) throw error;
      this.#underWay = null;
      link.failed(error);
      if (!error.lost) this.fail(error);
    } finally {
      if (this.#underWay === turn) this.#underWay = null;
      this.#look();
    }
  }
}
