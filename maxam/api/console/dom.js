/**
 * Elements made by code. Nothing in here makes markup out of text. Strings become text nodes, so nothing that a client sent can be
 * anything else.
 */

import { shown, shownShort } from "./text.js";

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. An attribute that is a function listens to the event of its name. True is an empty attribute. Null, undefined
 * and false are left out.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes | null} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  add(element, ...children);
  return element;
}

/**
 * @param {Element | DocumentFragment} parent
 * @param {...Child} children
 */
export function add(parent, ...children) {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, ...child);
    else if (child !== null && child !== undefined && child !== false) parent.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Put other children into an element.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  add(parent, ...children);
}

/**
 * Set a text only if it changed, so that nothing is laid out for nothing.
 * @param {Node} node
 * @param {string} text
 */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * A note that lists the columns of a table for which there is no room. It follows the width of the table.
 * @param {Element} table
 * @param {() => Iterable<Element>} heads heads of its columns, which the style sheet may hide
 */
export function noRoom(table, heads) {
  const note = el("span", { class: "no-room" });
  new ResizeObserver(() => {
    const hidden = [...heads()].filter((head) => getComputedStyle(head).display === "none").map((head) => head.textContent);
    put(note, hidden.length ? `No room for ${hidden.join(", ")}.` : "");
    note.title = note.textContent;
  }).observe(table);
  return note;
}

/**
 * Text of a client. Invisible characters show as escapes in a colour of their own.
 * @param {string | null | undefined} text
 * @param {number} [charactersMax] more is cut, and shown whole by a click
 * @returns {HTMLElement}
 */
export function client(text, charactersMax = 400) {
  const all = text ?? "";
  const holder = el("span", { class: "client" });
  if (all.length <= charactersMax) {
    escapes(holder, all);
    return holder;
  }
  escapes(holder, all.slice(0, charactersMax));
  const more = el("button", { type: "button", class: "more" }, `… all ${all.length} characters`);
  more.addEventListener("click", () => {
    fill(holder);
    escapes(holder, all);
    holder.tabIndex = -1;
    holder.focus();
  });
  add(holder, more);
  return holder;
}

/** @param {HTMLElement} holder @param {string} text */
function escapes(holder, text) {
  for (const part of text.split(/((?:(?! )[\p{C}\p{Z}])+)/u)) {
    if (part === "") continue;
    const written = shown(part);
    add(holder, written === part ? part : el("span", { class: "escape" }, written));
  }
}

/**
 * The same in one line of a table, cut by its width, the whole text as a hint.
 * @param {string | null | undefined} text
 */
export function cut(text) {
  const holder = el("span", { class: "client cut", title: shownShort(text ?? "", 2000) });
  escapes(holder, (text ?? "").slice(0, 300));
  return holder;
}

/** Outlines of the icons, on a grid of 24: paths drawn with a pen. */
const ICONS = {
  overview: "M4 13h4l2-7 4 13 2.5-6H20",
  topics: "M4 6h16M4 12h16M4 18h10",
  sessions: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2.5 19c.6-3.3 2.6-5 5.5-5s4.9 1.7 5.5 5M16 11.5a2.5 2.5 0 1 0 0-5M16.5 14.2c2.6.2 4.3 1.8 4.9 4.8",
  slow: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 9v4l3 2M9 2h6",
  bridges: "M3 17h18M5.5 17v-6M18.5 17v-6M3 11h18M5.5 11c1.5-5 11.5-5 13 0M12 11V7.4",
  cluster: "M3 4.5h7v6H3zM14 13.5h7v6h-7zM10 7.5h4.5a3 3 0 0 1 3 3v3M15.3 11.3l2.2 2.2 2.2-2.2",
  overdue: "M12 3.5 21.5 20h-19zM12 10v4.5M12 17.2v.3",
  rejects: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM5.8 5.8l12.4 12.4",
  schemas: "M8 4c-2.5 0-2 3.5-2 5s-1 3-2.5 3C5 12 6 13.5 6 15s-.5 5 2 5M16 4c2.5 0 2 3.5 2 5s1 3 2.5 3C19 12 18 13.5 18 15s.5 5-2 5",
  connections: "M9 7V3M15 7V3M6.5 7h11v4a5.5 5.5 0 0 1-11 0zM12 16.5V21",
  problems: "M9 7V3M15 7V3M6.5 7h11v4a5.5 5.5 0 0 1-11 0zM12 16.5V21M3.5 3.5l17 17",
  principals: "M8 14a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM12.2 11.5 20 19M17 16l2.5-2.5M8 9.5v.1",
  audit: "M7 3h8l4 4v14H5V3zM15 3v4h4M8.5 11h7M8.5 14.5h7M8.5 18h4",
  journal: "M12 8c4.4 0 7.5-1.1 7.5-2.5S16.4 3 12 3 4.5 4.1 4.5 5.5 7.6 8 12 8zM4.5 5.5v13C4.5 19.9 7.6 21 12 21s7.5-1.1 7.5-2.5v-13M4.5 12c0 1.4 3.1 2.5 7.5 2.5s7.5-1.1 7.5-2.5",
  about: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5.5M12 7.5v.3",
  ok: "M5 12.5l4.5 4.5L19 7.5",
  warn: "M12 3.5 21.5 20h-19zM12 10v4.5M12 17.2v.3",
  bad: "M7.8 2.5h8.4l5.3 5.3v8.4l-5.3 5.3H7.8l-5.3-5.3V7.8zM8.5 8.5l7 7M15.5 8.5l-7 7",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.5v15l12-7.5z",
  theme: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 3v18M12 7l5.5-2.5M12 12h9M12 17l5.5 2.5",
  help: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM9.5 9.5c0-3 5-3 5 0 0 2-2.5 2-2.5 4.3M12 17v.3",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L21 21",
};

/** @typedef {keyof typeof ICONS} Icon */

/**
 * @param {Icon} name
 * @param {string} [label] for those who do not see it; without one it only decorates
 * @returns {SVGSVGElement}
 */
export function icon(name, label) {
  const image = svg("svg", { viewBox: "0 0 24 24", class: `icon icon-${name}` });
  if (label === undefined) image.setAttribute("aria-hidden", "true");
  else {
    image.setAttribute("role", "img");
    image.setAttribute("aria-label", label);
  }
  image.append(svg("path", { d: ICONS[name] }));
  return /** @type {SVGSVGElement} */ (image);
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @returns {SVGElement}
 */
export function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/**
 * A state: shape, colour and word, so that none of them has to be seen.
 * @param {"ok" | "warn" | "bad" | "idle"} state
 * @param {string} word
 */
export function badge(state, word) {
  return el("span", { class: `badge ${state}` }, state === "idle" ? null : icon(state), word);
}
