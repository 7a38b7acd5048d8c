/** One STOMP connection: CONNECT, receipts and heart-beats. It never connects again. */

import type { Clock } from "./clock.ts";
import { errorOfFrame, lost, MaxamError } from "./errors.ts";
import { Decoder, encodeFrame, type Frame, HEART_BEAT, type Headers } from "./stomp.ts";
import type { Channel, Transport } from "./transport.ts";

/** The interval at which the gateway shall send something. */
const RECEIVE_INTERVAL_MS = 10_000;
/** A timer that fires this much later than asked for belongs to a page that was hidden or frozen. */
const LATE_MS = 5_000;
/** The time in which DISCONNECT is answered. */
const LEAVE_TIMEOUT_MS = 1_000;

export type OutHeaders = Readonly<Record<string, string | undefined>>;

/** Takes the events of a connection. `ended` is the last one, and comes once. */
export interface ConnectionEvents {
  /** CONNECT was written. Frames may follow at once: the gateway reads them when it has accepted CONNECT. */
  opened(): void;
  connected(headers: Headers): void;
  message(frame: Frame): void;
  /** All frames that came together were handed out. */
  drained(): void;
  ended(error: MaxamError): void;
}

export class Connection {
  readonly #clock: Clock;
  readonly #events: ConnectionEvents;
  readonly #decoder = new Decoder();
  readonly #receipts = new Map<string, { resolve: (headers: Headers) => void; reject: (error: MaxamError) => void }>();
  readonly #timers = new Map<"receive" | "send" | "leave", () => void>();
  readonly #channel: Channel;
  readonly #heartBeatMs: number;
  #receipt = 0;
  #connected = false;
  #leaving = false;
  #over = false;
  #receivedAt: number;
  #sentAt = 0;

  constructor(
    transport: Transport,
    url: string,
    headers: OutHeaders,
    connectTimeoutMs: number,
    clock: Clock,
    events: ConnectionEvents,
  ) {
    this.#clock = clock;
    this.#events = events;
    this.#receivedAt = clock.now();
    this.#heartBeatMs = transport.heartBeatMs;
    const connect = encodeFrame("CONNECT", {
      "accept-version": "1.2",
      "heart-beat": `${transport.heartBeatMs},${RECEIVE_INTERVAL_MS}`,
      ...headers,
    });
    this.#timer("receive", connectTimeoutMs, () =>
      this.#end(new MaxamError("connect-timeout", `No CONNECTED from ${url} in time.`, { temporary: true })),
    );
    this.#channel = transport.open(url, {
      opened: () => {
        if (this.#over) return;
        this.#write(connect);
        events.opened();
      },
      received: (bytes) => this.#received(bytes),
      ended: (error) => this.#end(error),
    });
  }

  /** Send a frame without a receipt. */
  post(command: string, headers: OutHeaders, body?: Uint8Array): void {
    if (!this.#over && !this.#leaving) this.#write(encodeFrame(command, headers, body));
  }

  /** Send a frame and return the headers of its RECEIPT. */
  request(command: string, headers: OutHeaders, body?: Uint8Array): Promise<Headers> {
    return new Promise((resolve, reject) => {
      if (this.#over || this.#leaving) throw lost("The connection has ended. Nothing was sent.");
      this.#receipt += 1;
      const receipt = `${this.#receipt}`;
      // `receipt` comes first, so that an ERROR in the middle of the head has it.
      const frame = encodeFrame(command, { receipt, ...headers }, body);
      this.#receipts.set(receipt, { resolve, reject });
      this.#write(frame);
    });
  }

  /** Send DISCONNECT, wait shortly for its RECEIPT and close. `ended` follows. */
  leave(): void {
    if (!this.#connected || this.#over) {
      this.#end(lost("This client disconnected."));
      return;
    }
    const end = () => this.#end(lost("This client disconnected."));
    this.request("DISCONNECT", {}).then(end, end);
    this.#leaving = true;
    this.#timer("leave", LEAVE_TIMEOUT_MS, end);
  }

  #write(bytes: Uint8Array): void {
    this.#sentAt = this.#clock.now();
    this.#channel.send(bytes);
  }

  #received(bytes: Uint8Array): void {
    if (this.#over) return;
    this.#receivedAt = this.#clock.now();
    try {
      this.#decoder.push(bytes);
      for (let frame = this.#decoder.next(); frame; frame = this.#decoder.next()) {
        this.#take(frame);
        if (this.#over) return;
      }
    } catch (error) {
      this.#end(
        error instanceof MaxamError
          ? new MaxamError(error.code, error.message, { temporary: true })
          : lost(`The client failed: ${error}.`, error),
      );
      return;
    }
    this.#events.drained();
  }

  #take(frame: Frame): void {
    const { command, headers } = frame;
    if (command === "MESSAGE" && this.#connected) {
      if (!this.#leaving) this.#events.message(frame);
    } else if (command === "RECEIPT" && this.#connected) {
      const id = headers["receipt-id"] ?? "";
      this.#receipts.get(id)?.resolve(headers);
      this.#receipts.delete(id);
    } else if (command === "ERROR") {
      this.#end(errorOfFrame(headers, frame.body));
    } else if (command === "CONNECTED" && !this.#connected) {
      this.#connected = true;
      const [sends = 0, wants = 0] = (headers["heart-beat"] ?? "0,0").split(",").map(Number);
      this.#timers.get("receive")?.();
      if (sends) this.#watch(2 * Math.max(sends, RECEIVE_INTERVAL_MS));
      if (wants && this.#heartBeatMs) this.#beat(Math.max(wants, this.#heartBeatMs));
      this.#events.connected(headers);
    } else {
      throw new MaxamError("malformed-frame", `${command} may not come here.`);
    }
  }

  /** End the connection after `patience` of silence. Silence counts only while the timers of the page are on time. */
  #watch(patience: number): void {
    const wait = Math.max(this.#receivedAt + patience - this.#clock.now(), 1);
    const due = this.#clock.now() + wait;
    this.#timer("receive", wait, () => {
      const now = this.#clock.now();
      if (now - due > LATE_MS) this.#receivedAt = now; // bytes that arrived meanwhile are handed out after this
      if (now - this.#receivedAt >= patience)
        this.#end(lost(`Nothing came from the gateway for ${patience / 1000} s.`));
      else this.#watch(patience);
    });
  }

  #beat(interval: number): void {
    this.#timer("send", Math.max(this.#sentAt + 0.9 * interval - this.#clock.now(), 1), () => {
      if (this.#clock.now() - this.#sentAt >= 0.9 * interval) this.#write(HEART_BEAT);
      this.#beat(interval);
    });
  }

  #timer(name: "receive" | "send" | "leave", ms: number, action: () => void): void {
    this.#timers.get(name)?.();
    this.#timers.set(name, this.#clock.after(ms, action));
  }

  #end(error: MaxamError): void {
    if (this.#over) return;
    this.#over = true;
    for (const cancel of this.#timers.values()) cancel();
    // `open` of the transport may end the connection before it returns.
    queueMicrotask(() => this.#channel?.close());
    for (const [id, { reject }] of this.#receipts) {
      reject(
        error.receipt === id
          ? error
          : new MaxamError("outcome-unknown", error.message, { temporary: true, cause: error }),
      );
    }
    this.#receipts.clear();
    this.#events.ended(error);
  }
}
