/** The fields of an Avro schema by their paths, and how those of two schemas differ. Nothing here touches the document. */

import { plural } from "../text.js";

/** @typedef {{type: string, fallback: string | undefined, doc: string}} Field */
/** @typedef {{path: string, what: "same" | "added" | "removed" | "changed", before: string | null, after: string | null, doc: string}} Difference */

const FIELDS_MAX = 3000;
const DEPTH_MAX = 40;

/**
 * @param {any} schema parsed JSON, self-contained
 * @returns {Map<string, Field>} in the order of the schema
 */
export function fieldsOf(schema) {
  /** @type {Map<string, Field>} */
  const found = new Map();
  /** @type {Map<string, any>} */
  const named = new Map();

  /** @param {any} type @param {string} space @param {string} at @param {number} depth @param {readonly string[]} inside @returns {string} the type in words */
  const walk = (type, space, at, depth, inside) => {
    if (typeof type === "string") {
      const full = named.has(type) ? type : `${space}.${type}`;
      const known = named.get(full);
      if (known === undefined) return type;
      if (known.type === "record" && depth < DEPTH_MAX && !inside.includes(full)) records(known, full, at, depth, inside);
      return full;
    }
    if (Array.isArray(type)) {
      const words = type.map((one) => {
        const name = typeof one === "object" && one !== null && one.name ? `<${one.name}>` : typeof one === "string" && named.get(named.has(one) ? one : `${space}.${one}`)?.type === "record" ? `<${one.split(".").pop()}>` : "";
        return walk(one, space, name && type.filter((other) => other !== "null").length > 1 ? at + name : at, depth + 1, inside);
      });
      return words.join(" | ");
    }
    switch (type.type) {
      case "array":
        return `list of ${walk(type.items, space, at + "[]", depth + 1, inside)}`;
      case "map":
        return `map of ${walk(type.values, space, at + "{}", depth + 1, inside)}`;
      case "record":
      case "error":
      case "enum":
      case "fixed": {
        const inSpace = type.name.includes(".") ? type.name.slice(0, type.name.lastIndexOf(".")) : (type.namespace ?? space);
        const full = type.name.includes(".") ? type.name : inSpace ? `${inSpace}.${type.name}` : type.name;
        named.set(full, { ...type, space: inSpace });
        if (type.type === "enum") return `${full} (${type.symbols.join(", ")})`;
        if (type.type === "fixed") return `${full} (${plural(type.size, "byte")}${logical(type)})`;
        records(named.get(full), full, at, depth, inside);
        return full;
      }
      default:
        return walk(type.type, space, at, depth + 1, inside) + logical(type);
    }
  };

  /** @param {any} record @param {string} full @param {string} at @param {number} depth @param {readonly string[]} inside */
  const records = (record, full, at, depth, inside) => {
    for (const field of record.fields ?? []) {
      if (found.size >= FIELDS_MAX) return;
      const name = at ? `${at}.${field.name}` : field.name;
      /** @type {Field} */
      const told = { type: "", fallback: "default" in field ? JSON.stringify(field.default) : undefined, doc: typeof field.doc === "string" ? field.doc : "" };
      found.set(name, told);
      told.type = walk(field.type, record.space ?? "", name, depth + 1, [...inside, full]);
    }
  };

  walk(schema, "", "", 0, []);
  return found;
}

/** @param {any} type */
function logical(type) {
  if (!type.logicalType) return "";
  return type.logicalType === "decimal" ? `, decimal(${type.precision}, ${type.scale ?? 0})` : `, ${type.logicalType}`;
}

/**
 * @param {Map<string, Field>} older
 * @param {Map<string, Field>} newer
 * @returns {Difference[]} in the order of the newer one, what it lacks at the end
 */
export function compared(older, newer) {
  /** @type {Difference[]} */
  const rows = [];
  for (const [path, field] of newer) {
    const before = older.get(path);
    const after = words(field);
    if (!before) rows.push({ path, what: "added", before: null, after, doc: field.doc });
    else rows.push({ path, what: words(before) === after ? "same" : "changed", before: words(before), after, doc: field.doc });
  }
  for (const [path, field] of older) if (!newer.has(path)) rows.push({ path, what: "removed", before: words(field), after: null, doc: field.doc });
  return rows;
}

/** @param {Field} field */
function words(field) {
  return field.fallback === undefined ? field.type : `${field.type} = ${field.fallback}`;
}
