/** A client that survives its connections. */

import { type Clock, realClock } from "./clock.ts";
import { Connection, type OutHeaders } from "./connection.ts";
import { Emitter, type Off } from "./emitter.ts";
import { asFinal, CREDENTIAL_CODES, MaxamError } from "./errors.ts";
import { writeJson } from "./json.ts";
import { LiveMap, type ValuesOptions } from "./live-map.ts";
import type { Headers } from "./stomp.ts";
import { openAhead, type Transport, webSocket } from "./transport.ts";

/** A connection that lived this long was stable: the pauses start again with the shortest. */
const STABLE_MS = 10_000;
/** New tickets in sequence that the gateway may refuse before the refusal is final. */
const REFUSALS_MAX = 3;

/** Gets a ticket or token. It is called before each connect. A MaxamError that is not temporary ends the client. */
export type Credential = (signal: AbortSignal) => string | Promise<string>;

export interface ClientOptions {
  /** Address such as `wss://gateway.example:61616/stomp`. Of several, the next one is tried after each failure. */
  url: string | readonly string[];
  /** Gets a ticket, usually from your own backend. */
  ticket?: Credential | undefined;
  /** Gets a JWT, instead of a ticket. */
  token?: Credential | undefined;
  /** Virtual host of the gateway. */
  host?: string | undefined;
  /** Name of the session. A second client with this name ends the first one. */
  clientId?: string | undefined;
  transport?: Transport | undefined;
  /** Time for a ticket, and again for the connection. */
  connectTimeoutMs?: number | undefined;
  /** The pause before a reconnect is a random part of a time that doubles from `minMs` to `maxMs`. */
  pause?: { minMs?: number; maxMs?: number } | undefined;
  /** Closes the client. */
  signal?: AbortSignal | undefined;
  /** @internal */
  clock?: Clock | undefined;
}

/**
 * The state of a client. `waiting` has the reason why there is no connection, and the time of the next attempt in milliseconds from
 * then. `closed` is final, and has the error unless `close` was called.
 */
export type ClientState =
  | { readonly status: "idle" | "connecting"; readonly error?: undefined }
  | { readonly status: "connected"; readonly error?: undefined; readonly session: string; readonly server: string }
  | { readonly status: "waiting"; readonly error: MaxamError; readonly retryInMs: number }
  | { readonly status: "closed"; readonly error: MaxamError | undefined };

export interface SendOptions {
  headers?: Readonly<Record<string, string>> | undefined;
  contentType?: string | undefined;
  /** Stops waiting for a connection. A SEND that was written is not taken back. */
  signal?: AbortSignal | undefined;
}

/** Connects at the first use, and again after each loss. Making one has no effect, so it may be made anywhere. */
export class Client {
  readonly #options: ClientOptions;
  readonly #clock: Clock;
  readonly #urls: readonly string[];
  readonly #maps = new Map<string, LiveMap<unknown>>();
  readonly #emitter = new Emitter<{ state: ClientState }>();
  #state: ClientState = { status: "idle" };
  #connection: Connection | undefined;
  #open = false; // CONNECT was sent on the connection
  #abort: AbortController | undefined; // of the credential
  #cancelRetry: (() => void) | undefined;
  #session: string | undefined;
  #connectedAt: number | undefined;
  #losses = 0; // in sequence
  #attempts = 0;
  #refusals = 0;
  #ids = 0;

  constructor(options: ClientOptions) {
    this.#options = options;
    this.#clock = options.clock ?? realClock;
    this.#urls = typeof options.url === "string" ? [options.url] : options.url;
    this.#session = options.clientId;
    if (this.#urls.length === 0) throw new MaxamError("bad-address", "`url` is empty: list at least one address.");
    if (options.signal?.aborted) this.close();
    else options.signal?.addEventListener("abort", this.close, { once: true });
  }

  get state(): ClientState {
    return this.#state;
  }

  /** Call `listener` at each new state until the returned function is called. */
  on(name: "state", listener: (state: ClientState) => void): Off {
    return this.#emitter.on(name, listener);
  }

  /** Return a map that is kept equal to the values of all topics of a glob. Close it when it is no longer needed. */
  values<T = unknown>(glob: string, options: ValuesOptions<T> = {}): LiveMap<T> {
    this.#ids += 1;
    const id = `v${this.#ids}`;
    const map = new LiveMap<T>(glob, id, options, () => this.#maps.delete(id));
    if (this.#state.status === "closed") map.fail(this.#state.error ?? closedError());
    if (map.state.status === "closed") return map;
    this.#maps.set(id, map as LiveMap<unknown>);
    if (this.#open && this.#connection) map.attach(this.#connection);
    if (this.#state.status === "connected") map.connected();
    this.#start();
    return map;
  }

  /** Wait for a connection. Temporary errors are waited for, final ones reject. */
  async open(options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    this.#start();
    while (this.#state.status !== "connected") {
      if (this.#state.status === "closed") throw this.#state.error ?? closedError();
      await this.#nextState(options.signal);
    }
  }

  /**
   * Publish a value, as JSON unless it is a `Uint8Array`. `undefined` deletes the topic. Return the headers of the RECEIPT.
   *
   * Rejects with the code of the result, such as `schema-mismatch`. With `outcome-unknown` the connection was lost, and the SEND may
   * have taken effect.
   */
  async send(destination: string, value: unknown, options: SendOptions = {}): Promise<Headers> {
    await this.open(options);
    const raw = value === undefined ? new Uint8Array() : value instanceof Uint8Array ? value : writeJson(value);
    const type = value === undefined || value instanceof Uint8Array ? undefined : "application/json";
    const headers = { destination, "content-type": options.contentType ?? type, ...options.headers };
    const receipt = await (this.#connection as Connection).request("SEND", headers, raw);
    if (receipt.disposition === "accepted") return receipt;
    const { disposition, result, reason } = receipt;
    throw new MaxamError(result ?? "rejected", `${destination}: ${disposition}: ${reason}`, {
      temporary: disposition === "rejected-unavailable",
    });
  }

  /** Disconnect for good. All live maps are closed too. */
  readonly close = (): void => this.#close(undefined);

  #start(): void {
    if (this.#state.status !== "idle") return;
    globalThis.addEventListener?.("online", this.#wake);
    globalThis.document?.addEventListener("visibilitychange", this.#wake);
    void this.#connect();
  }

  /** Do not wait longer when the network or the user is back. */
  readonly #wake = (): void => {
    if (this.#state.status === "waiting" && globalThis.document?.visibilityState !== "hidden") void this.#connect();
  };

  async #connect(): Promise<void> {
    this.#cancelRetry?.();
    const url = this.#urls[this.#attempts % this.#urls.length] as string;
    const timeoutMs = this.#options.connectTimeoutMs ?? 15_000;
    this.#attempts += 1;
    this.#set({ status: "connecting" });
    let login: OutHeaders;
    const abort = new AbortController();
    this.#abort = abort;
    const given = this.#options.transport ?? webSocket;
    let ahead: ReturnType<typeof openAhead> | undefined;
    try {
      // A page that loads waits for the slower of backend and gateway, not for one after the other. Later attempts do not burden the
      // gateway while the backend is away.
      if (this.#attempts === 1) ahead = openAhead(given, url);
      login = await this.#login(abort, timeoutMs);
    } catch (error) {
      ahead?.drop();
      if (!abort.signal.aborted || abort === this.#abort) this.#ended(asError(error));
      return;
    }
    if (abort !== this.#abort) {
      ahead?.drop(); // closed meanwhile
      return;
    }
    const headers = { host: this.#options.host ?? "MAXVAPI", "client-id": this.#session, ...login };
    try {
      const connection: Connection = new Connection(
        ahead?.transport ?? given,
        url,
        headers,
        timeoutMs,
        this.#clock,
        {
          // SUBSCRIBE does not wait for CONNECTED, which saves a round trip.
          opened: () => {
            this.#open = true;
            for (const map of this.#maps.values()) map.attach(connection);
          },
          connected: (answer) => this.#connected(answer),
          message: (frame) => {
            for (const map of this.#maps.values()) if (map.take(frame)) break;
          },
          drained: () => {
            for (const map of this.#maps.values()) map.drain();
          },
          // The rejected requests come first: a SUBSCRIBE that was refused closes its map.
          ended: (error) => queueMicrotask(() => this.#ended(error)),
        },
      );
      this.#connection = connection;
    } catch (error) {
      this.#close(asError(error));
    }
  }

  async #login(abort: AbortController, timeoutMs: number): Promise<OutHeaders> {
    const { ticket, token } = this.#options;
    const get = ticket ?? token;
    if (get === undefined) return {};
    let cancel: (() => void) | undefined;
    const late = new Promise<never>((_resolve, reject) => {
      cancel = this.#clock.after(timeoutMs, () => {
        reject(new MaxamError("credential-failed", "There was no ticket or token in time.", { temporary: true }));
        abort.abort();
      });
    });
    try {
      return { login: ticket ? "ticket" : "jwt", passcode: await Promise.race([get(abort.signal), late]) };
    } catch (error) {
      if (error instanceof MaxamError) throw error;
      const reason = error instanceof Error ? error.message : error;
      throw new MaxamError("credential-failed", `No ticket or token: ${reason}`, { temporary: true, cause: error });
    } finally {
      cancel?.();
    }
  }

  #connected(headers: Headers): void {
    this.#session = headers.session ?? this.#session;
    this.#connectedAt = this.#clock.now();
    this.#refusals = 0;
    const maps = [...this.#maps.values()];
    this.#set({ status: "connected", session: headers.session ?? "", server: headers.server ?? "" });
    for (const map of maps) map.connected();
  }

  #ended(error: MaxamError): void {
    if (this.#state.status === "closed") return;
    const stable = this.#connectedAt !== undefined && this.#clock.now() - this.#connectedAt >= STABLE_MS;
    this.#connection = undefined;
    this.#open = false;
    this.#connectedAt = undefined;
    const refused = CREDENTIAL_CODES.has(error.code);
    if (refused) this.#refusals += 1;
    const renewable = (this.#options.ticket ?? this.#options.token) !== undefined;
    if (!error.temporary || (refused && (!renewable || this.#refusals >= REFUSALS_MAX))) {
      this.#close(asFinal(error));
      return;
    }
    this.#losses = stable ? 0 : this.#losses + 1;
    const { minMs = 500, maxMs = 30_000 } = this.#options.pause ?? {};
    const retryInMs = this.#clock.random() * Math.min(maxMs, minMs * 2 ** Math.min(this.#losses, 30));
    this.#cancelRetry = this.#clock.after(retryInMs, () => void this.#connect());
    for (const map of this.#maps.values()) map.detach();
    this.#set({ status: "waiting", error, retryInMs });
  }

  #close(error: MaxamError | undefined): void {
    if (this.#state.status === "closed") return;
    this.#emitter.warn("state", "The client", error);
    globalThis.removeEventListener?.("online", this.#wake);
    globalThis.document?.removeEventListener("visibilitychange", this.#wake);
    this.#options.signal?.removeEventListener("abort", this.close);
    this.#cancelRetry?.();
    const abort = this.#abort;
    this.#abort = undefined;
    abort?.abort();
    this.#set({ status: "closed", error });
    for (const map of [...this.#maps.values()]) error ? map.fail(error) : map.close();
    this.#connection?.leave();
  }

  #nextState(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const abort = () => {
        off();
        reject(signal?.reason);
      };
      const off = this.on("state", () => {
        off();
        signal?.removeEventListener("abort", abort);
        resolve();
      });
      if (signal?.aborted) abort();
      else signal?.addEventListener("abort", abort, { once: true });
    });
  }

  #set(state: ClientState): void {
    this.#state = state;
    this.#emitter.emit("state", state);
  }
}

function asError(error: unknown): MaxamError {
  return error instanceof MaxamError
    ? error
    : new MaxamError("internal", `The client failed: ${error}.`, { cause: error });
}

function closedError(): MaxamError {
  return new MaxamError("closed", "The client was closed.");
}
