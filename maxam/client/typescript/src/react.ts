/** React hooks. They are safe under StrictMode: a double mount makes one subscription. */

import { useCallback, useSyncExternalStore } from "react";
import type { Client, ClientState } from "./client.ts";
import type { Entry, LiveMap, MapState, ValuesOptions } from "./live-map.ts";

/** The values of a glob at one moment. It never changes: an update makes a new one. */
export interface Values<T> {
  readonly entries: ReadonlyMap<string, Entry<T>>;
  readonly state: MapState;
}

/** Options of `useValues`. Two components with equal options share one subscription. */
export type UseValuesOptions = Omit<ValuesOptions<never>, "signal" | "decode" | "since" | "entries">;

/** The time that a subscription stays after its last component, so that a mount that follows uses it. */
const LINGER_MS = 1_000;
const NOTHING: Values<never> = { entries: new Map(), state: { status: "waiting" } };

/** One live map of all components with equal arguments. */
class Shared<T> {
  readonly #client: Client;
  readonly #glob: string;
  readonly #options: ValuesOptions<T>;
  readonly #onClosed: () => void;
  readonly #listeners = new Set<() => void>();
  #map: LiveMap<T> | undefined;
  #snapshot: Values<T> = NOTHING;
  #outdated = false;
  #linger: ReturnType<typeof setTimeout> | undefined;

  constructor(client: Client, glob: string, options: ValuesOptions<T>, onClosed: () => void) {
    this.#client = client;
    this.#onClosed = onClosed;
    this.#glob = glob;
    this.#options = options;
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    const own = () => listener();
    clearTimeout(this.#linger);
    this.#listeners.add(own);
    if (this.#map === undefined) this.#open();
    return () => {
      this.#listeners.delete(own);
      if (this.#listeners.size === 0) this.#linger = setTimeout(() => this.#close(), LINGER_MS);
    };
  };

  readonly snapshot = (): Values<T> => this.#snapshot;

  #open(): void {
    const map = this.#client.values<T>(this.#glob, this.#options);
    this.#map = map;
    map.on("update", this.#change);
    map.on("state", this.#change);
    this.#change();
  }

  #close(): void {
    this.#map?.close();
    this.#map = undefined;
    this.#snapshot = NOTHING;
    this.#onClosed();
  }

  /** Make one snapshot of all changes of a frame. Pages that are hidden have no frames. */
  readonly #change = (): void => {
    if (this.#outdated) return;
    this.#outdated = true;
    const publish = () => {
      this.#outdated = false;
      if (this.#map) this.#snapshot = { entries: new Map(this.#map), state: this.#map.state };
      for (const listener of this.#listeners) listener();
    };
    if (globalThis.document?.visibilityState === "visible") {
      requestAnimationFrame(publish);
    } else {
      setTimeout(publish, 0);
    }
  };
}

const shared = new WeakMap<Client, Map<string, Shared<unknown>>>();

function sharedOf<T>(client: Client, glob: string, options: UseValuesOptions): Shared<T> {
  const all = shared.get(client) ?? new Map<string, Shared<unknown>>();
  shared.set(client, all);
  const key = JSON.stringify([glob, Object.entries(options).sort(([one], [other]) => (one < other ? -1 : 1))]);
  const found = all.get(key) ?? new Shared<unknown>(client, glob, options, () => all.delete(key));
  all.set(key, found);
  return found as Shared<T>;
}

/** Return the values of a glob, and render again at most once a frame when they change. */
export function useValues<T = unknown>(client: Client, glob: string, options: UseValuesOptions = {}): Values<T> {
  const store = sharedOf<T>(client, glob, options);
  return useSyncExternalStore(store.subscribe, store.snapshot, () => NOTHING as Values<T>);
}

/** Return the state of the connection, and render again when it changes. */
export function useClientState(client: Client): ClientState {
  const subscribe = useCallback((listener: () => void) => client.on("state", listener), [client]);
  const snapshot = () => client.state;
  return useSyncExternalStore(subscribe, snapshot, snapshot);
}
