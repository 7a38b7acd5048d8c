/**
 * Text for people: what came from clients made visible, figures, ages and times. Nothing here touches the document.
 */

const UNSHOWN = /[\p{C}\p{Z}]/gu;

/**
 * Write everything that is not a visible character (control, format, bidirectional, private, unassigned, separators but the
 * space, lone surrogates) as an escape. The same idea as `admin/escaping.py`: for people, not for parsing.
 * @param {string} text
 * @returns {string}
 */
export function shown(text) {
  return text.replace(UNSHOWN, (character) => (character === " " ? " " : escapeOf(character)));
}

/**
 * The same, cut to a length, with an ellipsis.
 * @param {string} text
 * @param {number} charactersMax
 * @returns {string}
 */
export function shownShort(text, charactersMax) {
  // Only the visible part is searched: a value may be long, and a row is drawn often.
  const whole = text.length <= charactersMax;
  const escaped = shown(whole ? text : text.slice(0, charactersMax));
  return whole && escaped.length <= charactersMax ? escaped : escaped.slice(0, charactersMax - 1) + "…";
}

/**
 * Text of several lines: line ends stay, all else as `shown`.
 * @param {string} text
 * @returns {string}
 */
export function shownLines(text) {
  return text.replace(/\r\n/g, "\n").split("\n").map((line) => shown(line.replace(/\t/g, "    "))).join("\n");
}

/** @param {string} character one character, a whole code point */
function escapeOf(character) {
  const code = character.codePointAt(0) ?? 0;
  if (character === "\n") return "\\n";
  if (character === "\r") return "\\r";
  if (character === "\t") return "\\t";
  if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
  return code < 0x10000 ? "\\u" + code.toString(16).padStart(4, "0") : "\\U" + code.toString(16).padStart(8, "0");
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** @param {number | null | undefined} number */
export function count(number) {
  return number === null || number === undefined ? "–" : WHOLE.format(number);
}

/**
 * Events per second, as short as is honest.
 * @param {number | null | undefined} perSecond
 */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  return perSecond < 100 ? ONE.format(perSecond) : WHOLE.format(perSecond);
}

/** @param {number | null | undefined} bytes */
export function bytes(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let size = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return (unit === "B" || size >= 100 ? WHOLE : ONE).format(size) + " " + unit;
    size /= 1024;
  }
  return "";
}

/**
 * How long ago, or how long for: two units at most, and only digits that change slowly enough to be read.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 9.95) return s.toFixed(1) + " s";
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + pad(s % 60) + " s";
  if (s < 86_400) return Math.floor(s / 3600) + " h " + pad((s % 3600) / 60) + " min";
  return Math.floor(s / 86_400) + " d " + Math.floor((s % 86_400) / 3600) + " h";
}

/**
 * How long something short took.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function briefly(seconds) {
  return seconds === null || seconds === undefined || seconds >= 1 ? age(seconds) : `${ONE.format(seconds * 1000)} ms`;
}

/** @param {number} number */
function pad(number) {
  return String(Math.floor(number)).padStart(2, "0");
}

/** The zone that all times are shown in, such as `Australia/Sydney (UTC+11:00)`. */
export function zone() {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const minutes = -new Date().getTimezoneOffset();
  const sign = minutes < 0 ? "−" : "+";
  return `${name} (UTC${sign}${pad(Math.abs(minutes) / 60)}:${pad(Math.abs(minutes) % 60)})`;
}

/**
 * The time of day, with the date when it is not today's.
 * @param {string | number | null | undefined} at ISO, or milliseconds since the epoch
 * @returns {string}
 */
export function time(at) {
  if (at === null || at === undefined || at === "") return "–";
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return shown(String(at));
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return clock;
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock}`;
}

/**
 * @param {number} number
 * @param {string} one
 * @param {string} [many]
 */
export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : (many ?? one + "s")}`;
}

/**
 * A value in one line for a grid: JSON without the quotes of names, cut.
 * @param {unknown} value
 * @param {number} charactersMax
 * @returns {string}
 */
export function compact(value, charactersMax) {
  /** @type {string[]} */
  const parts = [];
  let length = 0;
  /** @param {string} text */
  const put = (text) => {
    parts.push(text);
    length += text.length;
  };
  /** @param {unknown} one @param {number} depth */
  const walk = (one, depth) => {
    if (length > charactersMax) return;
    if (Array.isArray(one)) {
      put("[");
      one.slice(0, 50).forEach((item, at) => {
        if (at) put(", ");
        walk(item, depth + 1);
      });
      put(one.length > 50 ? ", …]" : "]");
    } else if (one !== null && typeof one === "object") {
      const outer = depth === 0;
      if (!outer) put("{");
      let first = true;
      for (const [name, item] of Object.entries(one)) {
        if (length > charactersMax) break;
        put((first ? "" : outer ? " · " : ", ") + name + ": ");
        first = false;
        walk(item, depth + 1);
      }
      if (!outer) put("}");
    } else {
      put(typeof one === "string" ? one.slice(0, charactersMax) : String(one));
    }
  };
  walk(value, 0);
  return shownShort(parts.join(""), charactersMax);
}

/**
 * Paths of the leaves of a value, in its order, such as `from.updatedTime`; lists are leaves.
 * @param {unknown} value
 * @param {number} most
 * @returns {Map<string, unknown>}
 */
export function leaves(value, most) {
  /** @type {Map<string, unknown>} */
  const found = new Map();
  /** @param {unknown} one @param {string} path @param {number} depth */
  const walk = (one, path, depth) => {
    if (found.size >= most) return;
    if (one !== null && typeof one === "object" && !Array.isArray(one) && depth < 8) {
      for (const [name, item] of Object.entries(one)) walk(item, path ? `${path}.${name}` : name, depth + 1);
    } else {
      found.set(path, one);
    }
  };
  walk(value, "", 0);
  return found;
}

/**
 * The order of destinations, which is that of their bytes in UTF-8: by code points, not by UTF-16 as `<` has it.
 * @param {string} one
 * @param {string} other
 * @returns {number}
 */
export function byBytes(one, other) {
  const length = Math.min(one.length, other.length);
  for (let at = 0; at < length; at++) {
    const a = one.charCodeAt(at);
    const b = other.charCodeAt(at);
    if (a === b) continue;
    const highA = a >= 0xd800 && a < 0xe000;
    const highB = b >= 0xd800 && b < 0xe000;
    return highA === highB ? a - b : highA ? 1 : -1;
  }
  return one.length - other.length;
}

/**
 * The meaning of the filter box: a glob as it is, the beginning of a destination, or a part of one.
 * @param {string} typed
 * @returns {string}
 */
export function globOf(typed) {
  const text = typed.trim();
  if (text === "") return "**";
  if (/[*?[\]\\]/.test(text)) return text;
  const rooted = /^[A-Za-z0-9_-]{1,16}\//.test(text);
  return rooted ? text + "**" : "**" + text + "**";
}

/**
 * A text of the gateway's as a sentence, to stand beside others.
 * @param {string} text
 */
export function sentence(text) {
  const whole = text.trim();
  return whole.charAt(0).toUpperCase() + whole.slice(1) + (/[.!?]$/.test(whole) ? "" : ".");
}
