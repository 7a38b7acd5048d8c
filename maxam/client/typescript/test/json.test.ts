/** 64-bit integers of JSON values. */

import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { MaxamError } from "../src/errors.ts";
import { readLongs, writeJson } from "../src/json.ts";

test("every long becomes the same bigint, whether it was a number or text", () => {
  fc.assert(
    fc.property(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), (long) => {
      const shown = Number.isSafeInteger(Number(long)) ? Number(long) : long.toString();
      const value = { a: { b: [{ c: shown }, { c: null }] }, m: { x: shown }, other: "7" };
      const read = readLongs<unknown>(structuredClone(value), ["a.b.*.c", "m.*", "absent.*.field"]);
      assert.deepEqual(read, { a: { b: [{ c: long }, { c: null }] }, m: { x: long }, other: "7" });
    }),
  );
});

test("a value may itself be a long, and a text that is no number is refused", () => {
  assert.equal(readLongs<unknown>("9007199254740993", [""]), 9007199254740993n);
  assert.throws(
    () => readLongs({ a: "x" }, ["a"]),
    (error) => error instanceof MaxamError && error.code === "bad-value",
  );
});

test("a bigint is written as text", () => {
  assert.equal(new TextDecoder().decode(writeJson({ a: 2n ** 60n, b: [1] })), '{"a":"1152921504606846976","b":[1]}');
});
