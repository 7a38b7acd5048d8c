/** Typed events. */

import type { MaxamError } from "./errors.ts";

/** Removes a listener. */
export type Off = () => void;

/** Calls the listeners of named events. */
export class Emitter<Events extends Record<string, unknown>> {
  readonly #listeners = new Map<keyof Events, Set<(event: never) => unknown>>();

  /** Call `listener` at each event `name` until the returned function is called. */
  on<Name extends keyof Events>(name: Name, listener: (event: Events[Name]) => unknown): Off {
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners);
    const own = (event: Events[Name]) => listener(event); // one function may listen twice
    listeners.add(own);
    return () => listeners.delete(own);
  }

  /** Write an error after which nothing follows to the console if no listener of `name` gets it. */
  warn(name: keyof Events, what: string, error: MaxamError | undefined): void {
    if (error && !this.#listeners.get(name)?.size) console.error(`${what} was closed: ${error.message}`);
  }

  /** Call all listeners. Return the promises of those that returned one. Errors are reported, and do not stop the others. */
  emit<Name extends keyof Events>(name: Name, event: Events[Name]): Promise<unknown>[] {
    const promises: Promise<unknown>[] = [];
    for (const listener of [...(this.#listeners.get(name) ?? [])]) {
      try {
        const result = (listener as (event: Events[Name]) => unknown)(event);
        if (result instanceof Promise) promises.push(result.catch(report));
      } catch (error) {
        report(error);
      }
    }
    return promises;
  }
}

/** Report an error of the application as the platform reports uncaught ones. */
function report(error: unknown): void {
  if (globalThis.reportError) globalThis.reportError(error);
  else
    queueMicrotask(() => {
      throw error;
    });
}
