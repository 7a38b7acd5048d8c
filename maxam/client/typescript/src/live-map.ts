/**
 * A map that is kept equal to the broker's values.
 *
 * Messages take effect in the order of their arrival: first in the map, then in the listeners of `update`, then the ACK is sent.
 * A position counts once all messages before it have taken effect, so a stored position never covers a value that the
 * application did not get.
 */

import type { OutHeaders } from "./connection.ts";
import { Emitter, type Off } from "./emitter.ts";
import { asFinal, endsSubscription, MaxamError } from "./errors.ts";
import { readLongs } from "./json.ts";
import type { Frame, Headers } from "./stomp.ts";

/** The present value of one topic. An entry never changes: an update replaces it. */
export interface Entry<T> {
  readonly topic: string;
  readonly value: T;
  readonly revision: number;
  /** When the gateway accepted the value, in milliseconds since 1970. Missing without `metadata`. */
  readonly acceptedAt: number | undefined;
  /** Why the value may be old: `overdue`, `link-down`, or `undefined`. */
  readonly stale: string | undefined;
  /** All headers of the MESSAGE, such as `publisher` and `schema`. */
  readonly headers: Headers;
}

/** One change of the map. `left` means that the topic no longer matches the selector or the rights. */
export interface Change<T> {
  readonly kind: "value" | "delete" | "left" | "stale" | "fresh";
  readonly topic: string;
  /** The entry after the change. Missing after `delete` and `left`. */
  readonly entry: Entry<T> | undefined;
  readonly previous: Entry<T> | undefined;
  readonly reason: string | undefined;
}

/**
 * The state of a live map: `waiting` without a connection, `loading` until the map is complete, then `live`. `closed` is final, and
 * has the error unless `close` was called.
 */
export type MapState =
  | { readonly status: "waiting" | "loading" | "live"; readonly error?: undefined }
  | { readonly status: "closed"; readonly error: MaxamError | undefined };

/** All that is needed to continue later, as JSON can store it. */
export interface Saved<T> {
  readonly since: string;
  readonly entries: readonly (readonly [string, Entry<T>])[];
}

export interface ValuesOptions<T> {
  /** Condition on the values, see "Selectors" of the protocol. */
  selector?: string | undefined;
  /** At most one value of a topic in this number of milliseconds, 10 to 3600000. */
  minIntervalMs?: number | undefined;
  /** Skip values that equal the one sent last. */
  changesOnly?: boolean | undefined;
  /** The fields to receive. Only with JSON. */
  fields?: readonly string[] | undefined;
  /** Form of the values. `avro` gives the raw body as a `Uint8Array`. */
  format?: "json" | "avro" | undefined;
  /** Paths of `long` fields to read as `bigint`, see `readLongs`. */
  longs?: readonly string[] | undefined;
  /** Makes the value of a body. By default JSON is parsed, and a body of another content type stays a `Uint8Array`. */
  decode?: ((body: Uint8Array, headers: Headers) => T) | undefined;
  /** False leaves out `acceptedAt`, and the headers `publisher`, `schema` and `conflated`. */
  metadata?: boolean | undefined;
  /** Position to continue from, with the entries that were stored with it: the result of `save`. */
  since?: string | undefined;
  entries?: Iterable<readonly [string, Entry<T>]> | undefined;
  /** Closes the map. */
  signal?: AbortSignal | undefined;
}

/** The events of a live map. */
export interface MapEvents<T> extends Record<string, unknown> {
  /** Changes that came together. The ACK waits for the promises of the listeners, and meanwhile the gateway skips values. */
  update: readonly Change<T>[];
  /** The map is complete, at first and after each reconnect. `full` is false if it continued from its position. */
  sync: { readonly full: boolean };
  state: MapState;
  /** All values up to this position were handed to the listeners of `update`. */
  position: string;
}

/** The part of a connection that a map uses. */
export interface Link {
  post(command: string, headers: OutHeaders): void;
  request(command: string, headers: OutHeaders): Promise<Headers>;
}

export class LiveMap<T> implements Iterable<[string, Entry<T>]> {
  readonly glob: string;
  readonly #id: string;
  readonly #options: ValuesOptions<T>;
  readonly #onClosed: (map: LiveMap<T>) => void;
  readonly #entries: Map<string, Entry<T>>;
  readonly #emitter = new Emitter<MapEvents<T>>();
  readonly #texts = new TextDecoder();
  #state: MapState = { status: "waiting" };
  #since: string | undefined;
  #filtered = false;
  #link: Link | undefined;
  #inbox: Frame[] = [];
  #taking = false;
  #full = false; // all values come before `complete`
  #seen: Set<string> | undefined; // topics that came since the SUBSCRIBE, until `complete`

  /** @internal */
  constructor(glob: string, id: string, options: ValuesOptions<T>, onClosed: (map: LiveMap<T>) => void) {
    this.glob = glob;
    this.#id = id;
    this.#options = options;
    this.#onClosed = onClosed;
    this.#entries = new Map(options.entries);
    this.#since = options.since;
    if (options.signal?.aborted) this.close();
    else options.signal?.addEventListener("abort", this.close, { once: true });
  }

  get state(): MapState {
    return this.#state;
  }

  /** True while the map holds every value that its glob, selector and rights include. */
  get synced(): boolean {
    return this.#state.status === "live";
  }

  /** True if no right of this client can match any topic of the glob. */
  get filtered(): boolean {
    return this.#filtered;
  }

  /** The newest position, or `undefined` before the first one. */
  get since(): string | undefined {
    return this.#since;
  }

  get size(): number {
    return this.#entries.size;
  }

  get(topic: string): Entry<T> | undefined {
    return this.#entries.get(topic);
  }

  has(topic: string): boolean {
    return this.#entries.has(topic);
  }

  keys(): IterableIterator<string> {
    return this.#entries.keys();
  }

  values(): IterableIterator<Entry<T>> {
    return this.#entries.values();
  }

  [Symbol.iterator](): IterableIterator<[string, Entry<T>]> {
    return this.#entries[Symbol.iterator]();
  }

  /** Call `listener` at each event until the returned function is called. */
  on<Name extends keyof MapEvents<T> & string>(name: Name, listener: (event: MapEvents<T>[Name]) => unknown): Off {
    return this.#emitter.on(name, listener);
  }

  /** Wait until the map is complete. Rejects when it is closed before. */
  async ready(): Promise<this> {
    while (this.#state.status !== "live") {
      if (this.#state.status === "closed") throw this.#state.error ?? closed();
      await new Promise<void>((resolve) => {
        const off = this.on("state", () => {
          off();
          resolve();
        });
      });
    }
    return this;
  }

  /** Return position and entries, to continue later with `{...saved}` as options. `undefined` before the first position. */
  save(): Saved<T> | undefined {
    return this.#since === undefined ? undefined : { since: this.#since, entries: [...this.#entries] };
  }

  /** Unsubscribe. The entries stay as they are. */
  readonly close = (): void => this.#close(undefined);

  /** @internal Subscribe on a new connection, which may not be connected yet. */
  attach(link: Link): void {
    if (this.#state.status === "closed") return;
    const { selector, minIntervalMs, changesOnly, fields, format, metadata } = this.#options;
    this.#link = link;
    this.#full = this.#since === undefined;
    this.#seen = new Set();
    const yes = (option: boolean | undefined) => (option ? "true" : undefined);
    const request = link.request("SUBSCRIBE", {
      id: this.#id,
      destination: this.glob,
      ack: "client",
      eager: "true",
      markers: "true",
      metadata: yes(metadata ?? true),
      selector,
      "min-interval": minIntervalMs?.toString(),
      "changes-only": yes(changesOnly),
      fields: fields?.join(","),
      "accept-format": format === "avro" ? undefined : "json",
      since: this.#since,
    });
    request.then(
      (headers) => {
        this.#filtered = headers.filtered === "true";
      },
      (error: MaxamError) => {
        // An ERROR that refers to this SUBSCRIBE would follow it again.
        if (!error.temporary || (error.receipt !== undefined && endsSubscription(error)))
          this.#close(asFinal(error));
      },
    );
  }

  /** @internal The gateway has accepted the connection. */
  connected(): void {
    if (this.#state.status === "closed") return;
    // A topic counts as fresh until this subscription is notified of the contrary.
    this.#report([...this.#entries.values()].flatMap((entry) => (entry.stale ? this.#mark(entry.topic) : [])));
    this.#set({ status: "loading" });
  }

  /** @internal Forget the connection. Its unread messages come again. */
  detach(): void {
    this.#link = undefined;
    this.#inbox = [];
    if (this.#state.status !== "closed") this.#set({ status: "waiting" });
  }

  /** @internal */
  fail(error: MaxamError): void {
    this.#close(error, true);
  }

  /** @internal Return true if a MESSAGE is one of this subscription. `drain` handles it. */
  take(frame: Frame): boolean {
    if (frame.headers.subscription !== this.#id) return false;
    this.#inbox.push(frame);
    return true;
  }

  /** @internal Handle the messages that came. */
  drain(): void {
    if (this.#taking || this.#inbox.length === 0) return;
    this.#taking = true;
    this.#work()
      .catch((error) =>
        this.#close(
          error instanceof MaxamError
            ? error
            : new MaxamError("bad-value", `A value of ${this.glob} could not be decoded: ${error}.`, { cause: error }),
        ),
      )
      .finally(() => {
        this.#taking = false;
        this.drain(); // what came between the last check and this
      });
  }

  async #work(): Promise<void> {
    while (this.#inbox.length) {
      const link = this.#link;
      const marker = this.#inbox.findIndex(isMarker);
      const messages = this.#inbox.splice(0, marker < 0 ? this.#inbox.length : marker || 1);
      const promises = marker === 0 ? this.#pass(messages[0] as Frame) : this.#report(messages.flatMap(this.#apply));
      if (promises.length) await Promise.all(promises);
      if (link === undefined || link !== this.#link) continue;
      const ack = messages.findLast((message) => message.headers.ack)?.headers.ack;
      if (ack) link.post("ACK", { id: ack });
      if (marker === 0) this.#finish(messages[0] as Frame);
    }
  }

  /** Change the map by one MESSAGE. */
  readonly #apply = ({ headers, body }: Frame): Change<T>[] => {
    const topic = headers.destination ?? "";
    const { kind, reason } = headers;
    if (body.length === 0 && (kind === "stale" || kind === "fresh")) {
      return this.#mark(topic, kind === "stale" ? (reason ?? "overdue") : undefined);
    }
    this.#seen?.add(topic);
    if (body.length === 0) return this.#remove(topic, kind === "left" ? kind : "delete", reason);
    const previous = this.#entries.get(topic);
    const entry = {
      topic,
      value: this.#decode(body, headers),
      revision: Number(headers["message-id"]),
      acceptedAt: headers.timestamp === undefined ? undefined : Number(headers.timestamp),
      stale: undefined,
      headers,
    };
    this.#entries.set(topic, entry);
    return [{ kind: "value", topic, entry, previous, reason: undefined }];
  };

  #decode(body: Uint8Array, headers: Headers): T {
    if (this.#options.decode) return this.#options.decode(body, headers);
    if (this.#options.format === "avro" || !headers["content-type"]?.startsWith("application/json")) return body as T;
    const value = JSON.parse(this.#texts.decode(body));
    return this.#options.longs ? readLongs(value, this.#options.longs) : value;
  }

  /** Set or clear the reason why an entry may be old. */
  #mark(topic: string, stale?: string): Change<T>[] {
    const previous = this.#entries.get(topic);
    if (previous === undefined || previous.stale === stale) return [];
    const entry = { ...previous, stale };
    this.#entries.set(topic, entry);
    return [{ kind: stale ? "stale" : "fresh", topic, entry, previous, reason: stale }];
  }

  #remove(topic: string, kind: "delete" | "left", reason: string | undefined): Change<T>[] {
    const previous = this.#entries.get(topic);
    if (previous === undefined) return [];
    this.#entries.delete(topic);
    return [{ kind, topic, entry: undefined, previous, reason }];
  }

  #report(changes: Change<T>[]): Promise<unknown>[] {
    return changes.length ? this.#emitter.emit("update", changes) : [];
  }

  /** Remove what a full state did not contain, before the marker counts. */
  #pass({ headers }: Frame): Promise<unknown>[] {
    if (headers.kind !== "complete" || this.#seen === undefined) return [];
    this.#full ||= headers.result === "since-unavailable";
    const seen = this.#full ? this.#seen : undefined;
    this.#seen = undefined;
    if (seen === undefined) return [];
    const gone = [...this.#entries.keys()].filter((topic) => !seen.has(topic));
    return this.#report(gone.flatMap((topic) => this.#remove(topic, "left", "not-in-snapshot")));
  }

  /** Let a marker count: all messages before it have taken effect. */
  #finish({ headers }: Frame): void {
    if (this.#seen !== undefined) return; // before `complete` no position is safe
    if (headers.position !== undefined && headers.position !== this.#since) {
      this.#since = headers.position;
      this.#emitter.emit("position", headers.position);
    }
    if (headers.kind === "complete") {
      this.#set({ status: "live" });
      this.#emitter.emit("sync", { full: this.#full });
    }
  }

  #close(error: MaxamError | undefined, withClient = false): void {
    if (this.#state.status === "closed") return;
    if (!withClient) this.#emitter.warn("state", `The live map of ${this.glob}`, error);
    this.#options.signal?.removeEventListener("abort", this.close);
    this.#link?.post("UNSUBSCRIBE", { id: this.#id });
    this.#link = undefined;
    this.#inbox = [];
    this.#set({ status: "closed", error });
    this.#onClosed(this);
  }

  #set(state: MapState): void {
    this.#state = state;
    this.#emitter.emit("state", state);
  }
}

function isMarker(frame: Frame): boolean {
  return frame.headers.destination === "$marker";
}

function closed(): MaxamError {
  return new MaxamError("closed", "The live map was closed.");
}
