/** Values as JSON: 64-bit integers as `bigint`. */

import { MaxamError } from "./errors.ts";

/**
 * Replace the integers at `paths` by `bigint`, in place.
 *
 * A `long` beyond 2^53 is text in JSON, and a smaller one is a number. A path lists the fields from the root, such as
 * `meters.*.auxiliary.turnover`. `*` stands for each item of an array, each value of a map, and the name of a branch of a union.
 * A path that the value lacks has no effect. `maxam-admin schemas types` writes the paths of a type.
 */
export function readLongs<T>(value: T, paths: readonly string[]): T {
  const box = { value: value as unknown };
  for (const path of paths) replace(box, "value", path === "" ? [] : path.split("."), 0);
  return box.value as T;
}

function replace(parent: object, key: string, path: readonly string[], depth: number): void {
  const owner = parent as Record<string, unknown>;
  const value = owner[key];
  const name = path[depth];
  if (name === undefined) {
    if (typeof value === "number" || typeof value === "string") owner[key] = toBigInt(value, path.join("."));
  } else if (typeof value === "object" && value !== null) {
    for (const one of name === "*" ? Object.keys(value) : Object.hasOwn(value, name) ? [name] : []) {
      replace(value, one, path, depth + 1);
    }
  }
}

function toBigInt(value: number | string, path: string): bigint {
  try {
    return BigInt(value);
  } catch (cause) {
    throw new MaxamError("bad-value", `The field ${path} is ${JSON.stringify(value)}, which is not a whole number.`, {
      cause,
    });
  }
}

/** Write a value as JSON. A `bigint` becomes text. */
export function writeJson(value: unknown): Uint8Array {
  const text = JSON.stringify(value, (_key, one) => (typeof one === "bigint" ? one.toString() : one));
  return new TextEncoder().encode(text);
}
