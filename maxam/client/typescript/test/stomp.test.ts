/** The codec: round trips, any partition of the bytes, and what is refused. */

import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { MaxamError } from "../src/errors.ts";
import { Decoder, encodeFrame, type Frame } from "../src/stomp.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

function decode(parts: Iterable<Uint8Array>): Frame[] {
  const decoder = new Decoder();
  const frames: Frame[] = [];
  for (const part of parts) {
    decoder.push(part);
    for (let frame = decoder.next(); frame; frame = decoder.next()) frames.push(frame);
  }
  return frames;
}

const plain = (frames: Frame[]) =>
  frames.map(({ command, headers, body }) => ({ command, headers: { ...headers }, body: [...body] }));

const text = fc.string({ unit: "binary" }).filter((one) => !one.includes("\0"));
const frame = fc.record({
  command: fc.constantFrom("MESSAGE", "RECEIPT", "ERROR"),
  headers: fc
    .array(
      fc.tuple(
        text.filter((name) => name !== "" && name !== "content-length" && name !== "__proto__"),
        text,
      ),
      {
        maxLength: 5,
      },
    )
    .map((pairs) => Object.fromEntries(pairs)),
  body: fc.option(fc.uint8Array({ maxLength: 300 }), { nil: undefined }),
});

test("a frame is decoded as it was encoded, whatever the partition of the bytes", () => {
  fc.assert(
    fc.property(fc.array(frame, { maxLength: 4 }), fc.array(fc.nat(2000)), (frames, cuts) => {
      const all = frames.flatMap((one) => [...encodeFrame(one.command, one.headers, one.body), 10]);
      const edges = [0, ...cuts.map((cut) => cut % (all.length + 1)).sort((a, b) => a - b), all.length];
      const parts = edges.slice(1).map((edge, index) => Uint8Array.from(all.slice(edges[index], edge)));
      const expected = frames.map(({ command, headers, body }) => ({
        command,
        headers: body ? { ...headers, "content-length": `${body.length}` } : headers,
        body: [...(body ?? [])],
      }));
      assert.deepEqual(plain(decode(parts)), expected);
    }),
    { numRuns: 300 },
  );
});

const STREAM = bytes(
  "\n\r\nCONNECTED\r\nversion:1.2\r\nsession:a\\nb\r\n\r\n\0\n" +
    "MESSAGE\nsubscription:v\\c1\nsubscription:second\nempty:\ncontent-length:5\n\na\0b\n\n\0" +
    "RECEIPT\nreceipt-id:1\n\n\0\r\nERROR\nmessage:é\n\nno length\0",
);

test("every partition into two and every single byte give the same frames", () => {
  const expected = plain(decode([STREAM]));
  assert.deepEqual(
    expected.map((one) => one.command),
    ["CONNECTED", "MESSAGE", "RECEIPT", "ERROR"],
  );
  assert.deepEqual(expected[0]?.headers, { version: "1.2", session: "a\\nb" }); // no escapes in CONNECTED
  assert.deepEqual(expected[1]?.headers, { subscription: "v:1", empty: "", "content-length": "5" });
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    assert.deepEqual(plain(decode([STREAM.slice(0, cut), STREAM.slice(cut)])), expected);
  }
  assert.deepEqual(plain(decode(Array.from(STREAM, (byte) => Uint8Array.of(byte)))), expected);
});

for (const [name, data] of Object.entries({
  "an unknown escape": "MESSAGE\na:\\t\n\n\0",
  "an escape without its second character": "MESSAGE\na:b\\\n\n\0",
  "a line without a colon": "MESSAGE\nab\n\n\0",
  "a header without a name": "MESSAGE\n:b\n\n\0",
  "lower case": "message\n\n\0",
  "a content-length that is no number": "MESSAGE\ncontent-length:-1\n\n\0",
  "a body that is longer than its length": "MESSAGE\ncontent-length:1\n\nab\0",
  "a body that no client holds": "MESSAGE\ncontent-length:999999999\n\n",
  "headers without an end": `MESSAGE\na:${"b".repeat(200_000)}`,
  "bytes that are not UTF-8": "MESSAGE\na:\u0001\n\n\0",
})) {
  test(`the decoder refuses ${name}`, () => {
    const wrong = bytes(data).map((byte) => (byte === 1 ? 0xff : byte));
    assert.throws(
      () => decode([wrong]),
      (error) => error instanceof MaxamError && error.code === "malformed-frame",
    );
  });
}

test("a name like that of a method is a header like any other", () => {
  const [found] = decode([bytes("MESSAGE\n__proto__:1\ntoString:2\n\n\0")]);
  assert.deepEqual(Object.entries(found?.headers ?? {}), [
    ["__proto__", "1"],
    ["toString", "2"],
  ]);
  assert.equal(found?.headers.valueOf, undefined);
});

test("CONNECT cannot carry a line end, and no header a NUL", () => {
  for (const [command, value] of [
    ["CONNECT", "a\nb"],
    ["SEND", "a\0b"],
  ] as const) {
    assert.throws(
      () => encodeFrame(command, { value }),
      (error) => error instanceof MaxamError && error.code === "bad-header",
    );
  }
});
