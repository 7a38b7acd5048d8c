/** A clock that jumps, and a scripted gateway with faults on it. */

import type { Clock } from "../src/clock.ts";
import { lost } from "../src/errors.ts";
import { Decoder, encodeFrame, type Frame, HEART_BEAT } from "../src/stomp.ts";
import type { Channel, ChannelEvents, Transport } from "../src/transport.ts";

interface Timer {
  at: number;
  page: boolean;
  action: () => void;
}

/** Timers in simulated milliseconds. `throttle` delays timers of the page as a browser does it for a hidden tab. */
export class SimulatedClock implements Clock {
  #now = 0;
  #timers = new Set<Timer>();
  throttle = 0;
  random: () => number = () => 1;

  now(): number {
    return this.#now;
  }

  /** The time of the next timer, or `undefined` if there is none. */
  get due(): number | undefined {
    return this.#timers.size ? Math.min(...[...this.#timers].map(({ at }) => at)) : undefined;
  }

  after(ms: number, action: () => void): () => void {
    const due = this.#now + ms;
    return this.at(this.throttle ? Math.ceil(due / this.throttle) * this.throttle : due, action, true);
  }

  at(at: number, action: () => void, page = false): () => void {
    const timer = { at, action, page };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  /** Let this much time pass. Promises settle before each timer. */
  async pass(ms: number): Promise<void> {
    const end = this.#now + ms;
    for (;;) {
      await settle();
      let next: Timer | undefined;
      for (const timer of this.#timers) if (next === undefined || timer.at < next.at) next = timer;
      if (next === undefined || next.at > end) break;
      this.#timers.delete(next);
      this.#now = Math.max(this.#now, next.at);
      next.action();
    }
    this.#now = end;
    await settle();
  }

  /** Jump, as a frozen page does: its late timers run first, and then come the bytes that arrived meanwhile. */
  freeze(ms: number): void {
    this.#now += ms;
    for (const timer of [...this.#timers]) {
      if (timer.page && timer.at <= this.#now && this.#timers.delete(timer)) timer.action();
    }
  }
}

/** Let all promises settle that need no timer. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

interface Subscription {
  id: string;
  prefix: string;
  unacked: { id: number; topic: string }[];
  owed: Set<string>;
  /** Topics that the client may hold a value of, so that a delete is sent. `undefined`: it may hold all. */
  held: Set<string> | undefined;
  complete: boolean;
  result: string | undefined;
  position: number;
}

/** Faults of one connection. */
export interface Faults {
  /** Bytes to the client after which the connection is lost. */
  cutAfter?: number | undefined;
  /** Bytes that arrive together. */
  chunk?: number | undefined;
  /** Milliseconds until bytes arrive. */
  delay?: number | undefined;
  /** Every MESSAGE arrives twice. */
  duplicate?: boolean | undefined;
}

/** A gateway as far as a subscriber can see it: last values, deletes, owed topics, windows, positions. */
export class ScriptedGateway implements Transport {
  readonly heartBeatMs = 0;
  readonly clock: SimulatedClock;
  readonly values = new Map<string, { revision: number; body: string }>();
  readonly deletes = new Map<string, number>();
  revision = 0;
  floor = 0;
  incarnation = 1;
  /** The commands with their headers, of all connections. */
  readonly received: Frame[] = [];
  /** Answers of CONNECT and SUBSCRIBE, by the frame; `undefined` for the usual one. */
  refuse: (frame: Frame) => string | undefined = () => undefined;
  faults: (connection: number) => Faults = () => ({});
  down = false;
  connections: ServerConnection[] = [];
  opened = 0;

  constructor(clock: SimulatedClock) {
    this.clock = clock;
  }

  open(_url: string, events: ChannelEvents): Channel {
    this.opened += 1;
    if (this.down) {
      this.clock.at(this.clock.now(), () => events.ended(lost("refused")));
      return { send: () => undefined, close: () => undefined };
    }
    const connection = new ServerConnection(this, events, this.faults(this.opened));
    this.connections.push(connection);
    this.clock.at(this.clock.now(), () => events.opened());
    return connection;
  }

  count(command: string): number {
    return this.received.filter((frame) => frame.command === command).length;
  }

  publish(topic: string, value: unknown): void {
    this.revision += 1;
    if (value === undefined) {
      if (this.values.delete(topic)) this.deletes.set(topic, this.revision);
    } else {
      this.values.set(topic, { revision: this.revision, body: JSON.stringify(value) });
      this.deletes.delete(topic);
    }
    for (const connection of this.connections) connection.changed(topic);
  }

  /** Forget all deletes, so that older positions cannot be used. */
  forgetDeletes(): void {
    this.floor = Math.max(0, ...this.deletes.values(), this.floor);
    this.deletes.clear();
  }

  /** Lose all connections. */
  restart(): void {
    for (const connection of [...this.connections]) connection.cut();
  }

  /** Continue with another journal, as after a restore. */
  restore(): void {
    this.incarnation += 1;
    this.revision = this.values.size;
    let revision = 0;
    for (const value of this.values.values()) {
      revision += 1;
      value.revision = revision;
    }
    this.deletes.clear();
    this.floor = 0;
    this.restart();
  }

  /** The values as a live map shall hold them. */
  expected(): Record<string, unknown> {
    return Object.fromEntries([...this.values].map(([topic, { body }]) => [topic, JSON.parse(body)]));
  }
}

const WINDOW = 10;

export class ServerConnection implements Channel {
  readonly #gateway: ScriptedGateway;
  readonly #events: ChannelEvents;
  readonly #faults: Faults;
  readonly #decoder = new Decoder();
  readonly #subscriptions = new Map<string, Subscription>();
  #sent = 0;
  #over = false;
  #arrivesAt = 0;
  silent = false;

  constructor(gateway: ScriptedGateway, events: ChannelEvents, faults: Faults) {
    this.#gateway = gateway;
    this.#events = events;
    this.#faults = faults;
    this.#beat();
  }

  #beat(): void {
    const { clock } = this.#gateway;
    clock.at(clock.now() + 9_000, () => {
      if (this.#over) return;
      if (!this.silent) this.#write(HEART_BEAT);
      this.#beat();
    });
  }

  send(bytes: Uint8Array): void {
    if (this.#over) return;
    this.#decoder.push(bytes);
    for (let frame = this.#decoder.next(); frame; frame = this.#decoder.next()) {
      this.#gateway.received.push(frame);
      this.#take(frame);
    }
  }

  close(): void {
    this.cut();
  }

  cut(): void {
    if (this.#over) return;
    this.#over = true;
    this.#gateway.connections = this.#gateway.connections.filter((one) => one !== this);
    this.#gateway.clock.at(Math.max(this.#arrivesAt, this.#gateway.clock.now()), () => this.#events.ended(lost("cut")));
  }

  error(message: string, receipt?: string): void {
    const headers = { message, "receipt-id": receipt };
    this.#write(encodeFrame("ERROR", headers, new TextEncoder().encode("detail")));
    this.cut();
  }

  changed(topic: string): void {
    for (const one of this.#subscriptions.values()) {
      if (topic.startsWith(one.prefix)) {
        one.owed.delete(topic);
        one.owed.add(topic);
        this.#flush(one);
      }
    }
  }

  #take(frame: Frame): void {
    const { headers } = frame;
    const refusal = this.#gateway.refuse(frame);
    if (refusal !== undefined) {
      this.error(refusal, headers.receipt);
      return;
    }
    switch (frame.command) {
      case "CONNECT":
        this.#write(
          encodeFrame("CONNECTED", {
            version: "1.2",
            session: "session-1",
            server: "scripted",
            "heart-beat": "10000,10000",
          }),
        );
        return;
      case "SUBSCRIBE":
        this.#subscribe(headers as Record<string, string>);
        return;
      case "ACK":
        this.#acknowledge(headers.id as string);
        return;
      case "UNSUBSCRIBE":
        this.#subscriptions.delete(headers.id as string);
        break;
      case "SEND": {
        const body = new TextDecoder().decode(frame.body);
        this.#gateway.publish(headers.destination as string, body ? JSON.parse(body) : undefined);
        this.#write(encodeFrame("RECEIPT", { "receipt-id": headers.receipt, disposition: "accepted" }));
        return;
      }
    }
    if (headers.receipt) this.#write(encodeFrame("RECEIPT", { "receipt-id": headers.receipt }));
    if (frame.command === "DISCONNECT") this.cut();
  }

  #subscribe(headers: Record<string, string>): void {
    const gateway = this.#gateway;
    const prefix = (headers.destination as string).replace(/\*.*$/, "");
    const [incarnation, revision] = (headers.since ?? "0.0").split(".").map(Number) as [number, number];
    const usable = headers.since !== undefined && incarnation === gateway.incarnation && revision >= gateway.floor;
    const after = usable ? revision : 0;
    const owed = new Set([...gateway.values].filter(([, value]) => value.revision > after).map(([topic]) => topic));
    if (usable) for (const [topic, at] of gateway.deletes) if (at > after) owed.add(topic);
    const one: Subscription = {
      id: headers.id as string,
      prefix,
      unacked: [],
      owed: new Set([...owed].filter((topic) => topic.startsWith(prefix))),
      held: usable ? undefined : new Set(),
      complete: false,
      result: headers.since !== undefined && !usable ? "since-unavailable" : undefined,
      position: -1,
    };
    this.#subscriptions.set(one.id, one);
    this.#write(encodeFrame("RECEIPT", { "receipt-id": headers.receipt, result: one.result, ack: "client" }));
    this.#flush(one);
  }

  #acknowledge(id: string): void {
    const at = id.lastIndexOf(" ");
    const one = this.#subscriptions.get(id.slice(0, at));
    const covered = one?.unacked.findIndex((message) => message.id === Number(id.slice(at + 1))) ?? -1;
    if (one === undefined || covered < 0) return;
    one.unacked.splice(0, covered + 1);
    this.#flush(one);
  }

  #flush(one: Subscription): void {
    const gateway = this.#gateway;
    for (const topic of [...one.owed]) {
      if (one.unacked.length >= WINDOW || this.#over) return;
      if (one.unacked.some((message) => message.topic === topic)) continue;
      one.owed.delete(topic);
      const value = gateway.values.get(topic);
      if (value === undefined && one.held !== undefined && !one.held.has(topic)) continue;
      if (value) one.held?.add(topic);
      else one.held?.delete(topic);
      const id = value?.revision ?? gateway.deletes.get(topic) ?? gateway.revision;
      one.unacked.push({ id, topic });
      const headers = { subscription: one.id, ack: `${one.id} ${id}`, "message-id": `${id}`, destination: topic };
      const more = { timestamp: `${id}`, kind: value ? "value" : "delete", "content-type": "application/json" };
      const frame = encodeFrame("MESSAGE", { ...headers, ...more }, new TextEncoder().encode(value?.body ?? ""));
      this.#write(frame);
      if (this.#faults.duplicate) this.#write(frame);
    }
    if (one.owed.size || one.unacked.length || this.#over || one.position === gateway.revision) return;
    one.position = gateway.revision;
    const kind = one.complete ? "position" : "complete";
    one.complete = true;
    const headers = { subscription: one.id, "message-id": "0", destination: "$marker", kind, result: one.result };
    one.result = undefined;
    const position = `${gateway.incarnation}.${gateway.revision}`;
    this.#write(encodeFrame("MESSAGE", { ...headers, position }, new Uint8Array()));
  }

  notice(topic: string, headers: Record<string, string>): void {
    for (const one of this.#subscriptions.values()) {
      const all = { subscription: one.id, "message-id": "0", destination: topic, ...headers };
      this.#write(encodeFrame("MESSAGE", all, new Uint8Array()));
    }
  }

  #write(bytes: Uint8Array): void {
    if (this.#over) return;
    const { cutAfter = Number.POSITIVE_INFINITY, chunk = 65_536, delay = 0 } = this.#faults;
    const room = Math.min(bytes.length, cutAfter - this.#sent);
    const { clock } = this.#gateway;
    this.#arrivesAt = Math.max(this.#arrivesAt, clock.now() + delay);
    for (let at = 0; at < room; at += chunk) {
      const part = bytes.slice(at, Math.min(at + chunk, room));
      clock.at(this.#arrivesAt, () => this.#events.received(part));
    }
    this.#sent += room;
    if (room < bytes.length) this.cut();
  }
}
