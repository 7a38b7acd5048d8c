/** The codec of STOMP 1.2: frames to bytes, and bytes to frames. */

import { MaxamError } from "./errors.ts";

/** Headers of a frame. Of repeated headers the first one counts. The object has no prototype. */
export type Headers = Readonly<Record<string, string>>;

/** One frame of the gateway. */
export interface Frame {
  readonly command: string;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

/** The heart-beat: one line end between frames. */
export const HEART_BEAT: Uint8Array = new Uint8Array([10]);

const HEAD_BYTES_MAX = 131_072;
const LF = 10;
const CR = 13;
const TO_WIRE: Headers = { "\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c" };
const FROM_WIRE: Headers = { "\\\\": "\\", "\\r": "\r", "\\n": "\n", "\\c": ":" };

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Encode one frame. A header with the value `undefined` is left out, and `content-length` is added to a body. */
export function encodeFrame(
  command: string,
  headers: Readonly<Record<string, string | undefined>>,
  body?: Uint8Array,
): Uint8Array {
  // CONNECT has no escapes, for the sake of servers of STOMP 1.0.
  const plain = command === "CONNECT";
  let head = `${command}\n`;
  for (const [name, value] of Object.entries(headers)) {
    if (value !== undefined) head += `${escapeText(name, plain)}:${escapeText(value, plain)}\n`;
  }
  if (body === undefined) return encoder.encode(`${head}\n\0`);
  const start = encoder.encode(`${head}content-length:${body.length}\n\n`);
  const frame = new Uint8Array(start.length + body.length + 1);
  frame.set(start);
  frame.set(body, start.length);
  return frame;
}

function escapeText(text: string, plain: boolean): string {
  if (text.includes("\0") || (plain && /[\r\n]/.test(text))) {
    throw new MaxamError("bad-header", `A header cannot carry ${JSON.stringify(text)}: remove NUL, CR and LF.`);
  }
  return plain ? text : text.replace(/[\\\r\n:]/g, (one) => TO_WIRE[one] as string);
}

/** The head of a frame whose body is not complete. */
interface Head {
  command: string;
  headers: Headers;
  bodyAt: number;
  bodyBytes: number | undefined;
}

/** Decodes the frames of one connection. Any partition of the bytes gives the same frames. */
export class Decoder {
  readonly #frameBytesMax: number;
  #data = new Uint8Array(4096);
  #start = 0; // of the unfinished frame
  #end = 0; // of the received bytes
  #scanned = 0; // no end of head or body before
  #head: Head | undefined;

  constructor(frameBytesMax = 16_777_216) {
    this.#frameBytesMax = frameBytesMax;
  }

  /** Add received bytes. They are copied. */
  push(bytes: Uint8Array): void {
    const held = this.#end - this.#start;
    if (this.#end + bytes.length > this.#data.length) {
      // Doubling bounds the copies of a frame that arrives byte by byte.
      const room = held + bytes.length > this.#data.length / 2 ? 2 * (held + bytes.length) : this.#data.length;
      const data = room === this.#data.length ? this.#data : new Uint8Array(room);
      data.set(this.#data.subarray(this.#start, this.#end));
      this.#data = data;
      this.#scanned -= this.#start;
      if (this.#head) this.#head.bodyAt -= this.#start;
      this.#start = 0;
      this.#end = held;
    }
    this.#data.set(bytes, this.#end);
    this.#end += bytes.length;
  }

  /** Return the next complete frame, or `undefined`. Throws a MaxamError `malformed-frame`. */
  next(): Frame | undefined {
    const head = this.#head ?? this.#readHead();
    if (head === undefined) return undefined;
    const end = this.#endOfBody(head.bodyAt, head.bodyBytes);
    if (end === undefined) return undefined;
    const frame = { command: head.command, headers: head.headers, body: this.#data.slice(head.bodyAt, end) };
    this.#head = undefined;
    this.#start = this.#scanned = end + 1;
    return frame;
  }

  #readHead(): Head | undefined {
    const data = this.#data;
    if (this.#scanned === this.#start) {
      while (this.#start < this.#end && (data[this.#start] === LF || data[this.#start] === CR)) this.#start += 1;
      this.#scanned = this.#start;
    }
    for (let at = this.#scanned; at < this.#end; at += 1) {
      if (data[at] !== LF) continue;
      const after = at + 1 < this.#end && data[at + 1] === CR ? at + 2 : at + 1;
      if (after >= this.#end) {
        this.#scanned = at; // more bytes decide whether the next line is empty
        return this.#checkSize(at);
      }
      if (data[after] === LF) {
        this.#checkSize(at);
        const bodyAt = after + 1;
        this.#head = { ...parseHead(data.subarray(this.#start, at)), bodyAt };
        this.#scanned = bodyAt;
        return this.#head;
      }
    }
    this.#scanned = Math.max(this.#scanned, this.#end);
    return this.#checkSize(this.#end);
  }

  #checkSize(end: number): undefined {
    if (end - this.#start > HEAD_BYTES_MAX) throw malformed(`The headers are longer than ${HEAD_BYTES_MAX} bytes.`);
  }

  #endOfBody(bodyAt: number, bodyBytes: number | undefined): number | undefined {
    if (bodyBytes !== undefined) {
      if (bodyBytes > this.#frameBytesMax) throw malformed(`The body has ${bodyBytes} bytes, which is too many.`);
      const end = bodyAt + bodyBytes;
      if (end >= this.#end) return undefined;
      if (this.#data[end] !== 0) throw malformed("No NUL follows the body.");
      return end;
    }
    const found = this.#data.subarray(0, this.#end).indexOf(0, this.#scanned);
    if (found >= 0) return found;
    this.#scanned = this.#end;
    if (this.#end - bodyAt > this.#frameBytesMax) throw malformed("The body is too long.");
    return undefined;
  }
}

function parseHead(bytes: Uint8Array): Omit<Head, "bodyAt"> {
  let text: string;
  try {
    text = decoder.decode(bytes);
  } catch {
    throw malformed("The headers are not UTF-8.");
  }
  const lines = text.split(/\r?\n/);
  const command = (lines[0] as string).replace(/\r$/, "");
  if (!/^[A-Z]{1,16}$/.test(command)) throw malformed(`${JSON.stringify(command.slice(0, 40))} is not a command.`);
  const plain = command === "CONNECTED";
  const headers: Record<string, string> = Object.create(null);
  for (let index = 1; index < lines.length; index += 1) {
    const line = (lines[index] as string).replace(/\r$/, "");
    const colon = line.indexOf(":");
    if (colon < 1) throw malformed(`${JSON.stringify(line.slice(0, 40))} is not a header.`);
    const name = unescapeText(line.slice(0, colon), plain);
    headers[name] ??= unescapeText(line.slice(colon + 1), plain);
  }
  const length = headers["content-length"];
  if (length !== undefined && !/^\d{1,15}$/.test(length)) throw malformed("The content-length is not a number.");
  return { command, headers, bodyBytes: length === undefined ? undefined : Number(length) };
}

function unescapeText(text: string, plain: boolean): string {
  if (plain || !text.includes("\\")) return text;
  return text.replace(/\\.?/gsu, (pair) => {
    const found = FROM_WIRE[pair];
    if (found === undefined) throw malformed(`${JSON.stringify(pair)} is not an escape of STOMP 1.2.`);
    return found;
  });
}

function malformed(detail: string): MaxamError {
  return new MaxamError("malformed-frame", `The gateway sent no valid STOMP frame. ${detail}`);
}
