/** The JSON API of the admin listener: one way to ask, and errors with advice. */

const TIMEOUT_MS = 20_000; // the gateway itself gives up after 15 s, with an error
// A browser opens six connections to a gateway that has room for 64 in all: a tab does with two, and one for its stream.
const AT_ONCE_MAX = 2;

let underWay = 0;
/** @type {(() => void)[]} */
const waiting = [];

/** Wait for a slot. The caller gives it back by `leave`. */
async function enter() {
  if (underWay >= AT_ONCE_MAX) await new Promise((resolve) => waiting.push(() => resolve(undefined)));
  else underWay += 1;
}

function leave() {
  const next = waiting.shift();
  if (next) next();
  else underWay -= 1;
}

/**
 * Rights of the caller, by the last answer of `/v1/about`. Until then it is the gateway that refuses. `as_of` is the time of the
 * state that an observer showed last; empty for other gateways.
 */
export const access = { write: true, enrol: false, as_of: "" };

/** Why the gateway was not asked or did not do it. */
export class Problem extends Error {
  /**
   * @param {number} status of HTTP, 0 without an answer
   * @param {string} code
   * @param {string} detail
   * @param {number} [position] of a fault in a condition: its character, from 1
   */
  constructor(status, code, detail, position) {
    super(detail);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.position = position;
  }

  /** Whether no gateway answered at all: what is on the screen may be out of date. */
  get lost() {
    return this.status === 0;
  }

  /** Description of the error, in words. */
  get what() {
    switch (true) {
      case this.status === 0:
        return "The gateway does not answer.";
      case this.status === 401:
        return "The browser showed the gateway no certificate.";
      case this.code === "certificate-refused":
        return "Your certificate is no longer valid.";
      case this.status === 403 && this.code === "forbidden":
        return "Your certificate may not see or do this.";
      case this.code === "personal-withheld":
        return "The condition reads personal data.";
      case this.code === "invalid-selector":
        return "The condition cannot be used.";
      case this.status === 403:
        return "That was refused.";
      case this.status === 404:
        return "That does not exist, or no longer.";
      case this.status === 409:
        return "That cannot be done as things are now.";
      case this.status === 421:
        return "The gateway does not answer to the name in the address bar.";
      case this.status === 429 || this.status === 503:
        return "The gateway is too busy to answer that now.";
      case this.status >= 500:
        return "The gateway met an error of its own.";
      default:
        return "The gateway did not take that.";
    }
  }

  /** Advice for the operator. */
  get advice() {
    switch (true) {
      case this.status === 0:
        return "The page tries again by itself. Check whether the gateway runs, and whether this machine reaches it.";
      case this.status === 401:
        return "Import an operator's certificate into the browser (docs/operate/console.md) and open the page again.";
      case this.code === "certificate-refused":
        return "Ask the keeper of the certificates for a new one.";
      case this.status === 403 && this.code === "forbidden":
        return "The right is given by the policy: an `admin` right of one of your principal's capabilities.";
      case this.code === "personal-withheld":
        return "Tick “Personal data” above.";
      case this.status === 421:
        return "Open the page by a name of the gateway, or have this one added to `hosts` under [admin] of its configuration.";
      case this.status === 503:
        return "A change may still take effect. Check again in a moment.";
      case this.status >= 500:
        return "Its log has the details, with the time.";
      default:
        return "";
    }
  }
}

/**
 * @param {string} path
 * @param {"json" | "text"} form
 * @param {{method?: string, body?: string, signal?: AbortSignal}} [options]
 * @returns {Promise<any>} what was answered with a good status
 */
async function ask(path, form, options = {}) {
  const method = options.method ?? "GET";
  /** @type {Record<string, string>} */
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["maxam-admin"] = "1";
  if (options.body !== undefined) headers["content-type"] = "application/json";
  await enter();
  try {
    options.signal?.throwIfAborted();
    const limit = AbortSignal.timeout(TIMEOUT_MS);
    const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
    const response = await fetch(path, { method, headers, body: options.body, cache: "no-store", redirect: "error", signal });
    access.as_of = response.headers.get("maxam-as-of") ?? "";
    if (!response.ok) throw await problemOf(response);
    const text = await response.text();
    return form === "json" ? JSON.parse(text, /** @type {any} */ (exact)) : text;
  } catch (error) {
    if (error instanceof Problem || options.signal?.aborted) throw error;
    throw new Problem(0, "lost", "there was no whole answer");
  } finally {
    leave();
  }
}

/**
 * Keep whole numbers that JavaScript would round as texts, as live views have them.
 * @param {string} _key
 * @param {unknown} value
 * @param {{source?: string}} [context] which old browsers do not give
 */
function exact(_key, value, context) {
  const source = context?.source ?? "";
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) ? source : value;
}

/**
 * Read the error out of an answer.
 * @param {Response} response
 * @returns {Promise<Problem>}
 */
export async function problemOf(response) {
  let code = "bad";
  let detail = `HTTP status ${response.status}`;
  let position;
  try {
    const body = await response.json();
    if (typeof body.error === "string") code = body.error;
    if (typeof body.detail === "string") detail = body.detail;
    else if (typeof body.message === "string") detail = body.message;
    if (typeof body.position === "number") position = body.position;
  } catch {
    // not JSON: it is from a program between us and the gateway
  }
  return new Problem(response.status, code, detail, position);
}

/**
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export function get(path, signal) {
  return ask(path, "json", { signal });
}

/**
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<string>}
 */
export function getText(path, signal) {
  return ask(path, "text", { signal });
}

/**
 * Change something, with the header that no foreign page can send.
 * @param {"POST" | "PUT" | "DELETE"} method
 * @param {string} path
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
export function change(method, path, body) {
  return ask(path, "json", { method, body: body === undefined ? undefined : JSON.stringify(body) });
}

/**
 * A path of parts and a query; parts are one segment each, whatever is in them.
 * @param {string[]} parts
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function path(parts, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  }
  const text = words.toString();
  return "/" + parts.map((part) => segment(part)).join("/") + (text ? "?" + text : "");
}

/** @param {string} part */
function segment(part) {
  // A browser takes dots for folders even when they are escaped, and would ask for something else.
  if (part === "." || part === "..") {
    throw new Problem(400, "unnameable", `a browser cannot ask for something named "${part}": use maxam-admin`);
  }
  return encodeURIComponent(part.toWellFormed());
}

/**
 * The path of a topic: a destination keeps its `/`.
 * @param {string} family `topics` or `history`
 * @param {string} destination
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function topicPath(family, destination, query = {}) {
  return path(["v1", family, ...destination.split("/")], query);
}

/**
 * @param {{principal: string, client_id: string}} session
 * @param {string} [action]
 */
export function sessionPath(session, action) {
  return path(["v1", "sessions", session.principal, session.client_id, ...(action ? [action] : [])]);
}
