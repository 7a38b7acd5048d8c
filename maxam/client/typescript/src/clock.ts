/** Time and chance. Tests replace them. */

/** The time in milliseconds, timers, and random numbers from 0 to 1. */
export interface Clock {
  now(): number;
  random(): number;
  /** Call `action` after `ms`, unless the returned function is called before. */
  after(ms: number, action: () => void): () => void;
}

export const realClock: Clock = {
  now: () => performance.now(),
  random: Math.random,
  after(ms, action) {
    const timer = setTimeout(action, ms);
    return () => clearTimeout(timer);
  },
};
