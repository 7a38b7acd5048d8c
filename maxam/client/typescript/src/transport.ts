/** Byte streams to a gateway: the interface of all transports, and the one over WebSocket. */

import { lost, MaxamError } from "./errors.ts";

/** One byte stream. */
export interface Channel {
  /** Write bytes. */
  send(bytes: Uint8Array): void;
  /** Close the stream. Bytes that were sent before are still written. */
  close(): void;
}

/** Takes the events of one byte stream. `ended` is the last one. */
export interface ChannelEvents {
  opened(): void;
  received(bytes: Uint8Array): void;
  ended(error: MaxamError): void;
}

/** Opens byte streams. */
export interface Transport {
  /** Milliseconds between the heart-beats of the client, or 0 if the gateway checks by itself that the client is alive. */
  readonly heartBeatMs: number;
  /** Open a stream. Throws a MaxamError if the address is invalid. */
  open(url: string, events: ChannelEvents): Channel;
}

/**
 * A transport whose stream is opened now, before somebody asks for it. Its events wait until then. `drop` closes it.
 *
 * Throws a MaxamError if the address is invalid.
 */
export function openAhead(transport: Transport, url: string): { readonly transport: Transport; drop(): void } {
  const waiting: ((events: ChannelEvents) => void)[] = [];
  let taker: ChannelEvents | undefined;
  const take = (event: (events: ChannelEvents) => void) => (taker ? event(taker) : waiting.push(event));
  const channel = transport.open(url, {
    opened: () => take((events) => events.opened()),
    received: (bytes) => take((events) => events.received(bytes)),
    ended: (error) => take((events) => events.ended(error)),
  });
  const open = (_url: string, events: ChannelEvents) => {
    queueMicrotask(() => {
      for (const event of waiting) event(events);
      taker = events;
    });
    return channel;
  };
  return { transport: { heartBeatMs: transport.heartBeatMs, open }, drop: () => channel.close() };
}

/**
 * STOMP over WebSocket.
 *
 * The client sends no heart-beats: browsers slow the timers of hidden tabs to one a minute. The gateway sends WebSocket pings,
 * which the browser answers by itself.
 */
export const webSocket: Transport = {
  heartBeatMs: 0,
  open(url, events) {
    let socket: WebSocket;
    if (globalThis.WebSocket === undefined)
      throw new MaxamError(
        "no-websocket",
        "This runtime has no WebSocket. Start Node.js before 22 with --experimental-websocket, or use `tls`.",
      );
    try {
      socket = new WebSocket(url, ["v12.stomp"]);
    } catch (cause) {
      throw new MaxamError("bad-address", `${url} is not the address of a WebSocket. Expected wss://host:port/stomp.`, {
        cause,
      });
    }
    const texts = new TextEncoder();
    let wasOpen = false;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      wasOpen = true;
      events.opened();
    };
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) =>
      events.received(typeof data === "string" ? texts.encode(data) : new Uint8Array(data));
    let hasEnded = false;
    const ended = (error: MaxamError) => {
      if (!hasEnded) events.ended(error);
      hasEnded = true;
    };
    const unreachable = () =>
      new MaxamError(
        "unreachable",
        `No connection to ${url}. Check the address, the certificate of the gateway and \`origins\` in its [web] section.`,
        { temporary: true },
      );
    socket.onerror = () => {
      if (!wasOpen) ended(unreachable()); // Node.js 20 emits no `close` for an upgrade that was refused
    };
    socket.onclose = ({ code, reason }) =>
      ended(
        wasOpen
          ? lost(`The connection to ${url} was closed with code ${code}${reason && `: ${reason}`}.`)
          : unreachable(),
      );
    return {
      send: (bytes) => socket.send(bytes as Uint8Array<ArrayBuffer>),
      close: () => socket.close(),
    };
  },
};
