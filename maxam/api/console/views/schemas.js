/** Types, rules, texts, and what changed between two minors. */

import { get, getText, path, Problem } from "../api.js";
import { nothing, refusal } from "../dialogs.js";
import { add, badge, client, el, fill } from "../dom.js";
import { filterBox, Panel } from "../listing.js";
import { Poll } from "../link.js";
import { plural, shownLines } from "../text.js";
import { compared, fieldsOf } from "./schema_diff.js";

/** @param {import("../main.js").Place} place */
export function show({ root, query, remember }) {
  let typed = query.get("find") ?? "";
  /** @type {any} */
  let registry = null;
  const types = el("div", { class: "place" }, el("p", { class: "loading" }, "Asking the gateway …"));
  const said = el("p", { class: "summary", role: "status" });
  const panel = new Panel();
  const draw = () => {
    if (!registry) return;
    const names = Object.keys(registry.types).filter((name) => name.toLowerCase().includes(typed.toLowerCase()));
    fill(said, el("span", null, `${plural(names.length, "type")}, ${plural(registry.rules.length, "rule")}`));
    fill(
      types,
      names.length ? el("ul", { class: "types" }, names.map((name) => el("li", null, el("button", { type: "button", class: "open", click: () => void open(name) }, client(name, 200)), el("span", { class: "aside" }, `minors ${registry.types[name].join(", ")}, ${registry.compatibility?.[name] ?? ""}`)))) : nothing("No type matches."),
      el("h2", null, "Rules, the first that matches decides"),
      rules(registry.rules.filter((/** @type {any} */ rule) => `${rule.destination} ${rule.schema}`.toLowerCase().includes(typed.toLowerCase()))),
    );
  };
  const poll = new Poll(
    (signal) => get("/v1/schemas", signal),
    15_000,
    (answer) => {
      const first = registry === null;
      if (JSON.stringify(answer) === JSON.stringify(registry)) return;
      registry = answer;
      draw();
      const wanted = query.get("type");
      if (first && wanted) void open(wanted);
    },
    (problem) => fill(types, refusal(problem)),
  );
  const filter = filterBox({
    label: "Filter types and rules",
    placeholder: "Filter: a part of a type or a destination",
    value: typed,
    changed: (text) => {
      typed = text;
      remember({ find: typed });
      draw();
    },
  });
  /** @param {string} name */
  const open = async (name) => {
    const holder = el("div", null, el("p", { class: "loading" }, "Asking the gateway …"));
    panel.show(client(name, 200), [holder], () => undefined);
    try {
      fill(holder, showType(await get(path(["v1", "schemas", name]))));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      fill(holder, refusal(error));
    }
  };
  add(root, el("div", { class: "tools" }, filter), el("div", { class: "split" }, el("div", { class: "list" }, said, types), panel.element));
  return () => poll.stop();
}

/** @param {any[]} rules */
function rules(rules) {
  return el(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": "Rules" },
    el(
      "table",
      null,
      el("thead", null, el("tr", null, ["Destination", "Type", "Encoding", "Minors"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", null, rules.map((rule) => el("tr", null, el("th", { scope: "row" }, client(rule.destination, 200)), el("td", null, rule.schema ? client(rule.schema, 200) : "none"), el("td", null, rule.encoding), el("td", null, (rule.versions ?? []).join(", "))))),
    ),
  );
}

/** @param {any} type */
function showType(type) {
  const minors = /** @type {string[]} */ (type.versions.map((/** @type {any} */ one) => one.minor)); // newest first
  const result = el("div", { class: "diff", role: "region", "aria-label": "Fields", "aria-live": "polite" });
  /** @param {string} label @param {string} chosen */
  const choice = (label, chosen) => {
    const select = el("select", { "aria-label": label, change: () => void draw() }, minors.map((minor) => el("option", { value: minor }, minor)));
    select.value = chosen;
    return select;
  };
  const from = choice("Older minor", minors[1] ?? minors[0] ?? "");
  const to = choice("Newer minor", minors[0] ?? "");
  const texts = /** @type {Map<string, string>} */ (new Map());
  /** @param {string} minor */
  const text = async (minor) => {
    const known = texts.get(minor) ?? (await getText(path(["v1", "schemas", type.type, minor])));
    texts.set(minor, known);
    return known;
  };
  const draw = async () => {
    try {
      const [older, newer] = [await text(from.value), await text(to.value)];
      const now = JSON.parse(newer);
      fill(
        result,
        from.value === to.value ? fieldList(now) : diffList(JSON.parse(older), now, from.value, to.value),
        el("details", null, el("summary", null, `Text of ${to.value}`), el("pre", { class: "json client", tabindex: 0, role: "group", "aria-label": "Schema text" }, shownLines(JSON.stringify(now, null, 2)))),
      );
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      fill(result, refusal(error));
    }
  };
  void draw();
  return el(
    "div",
    null,
    el("p", null, `Compatibility ${type.compatibility ?? "not checked"}. `, type.rules.length ? ["Carried by ", type.rules.map((/** @type {any} */ rule, /** @type {number} */ at) => [at ? ", " : "", el("a", { href: `#/topics?${new URLSearchParams({ glob: rule.destination })}` }, client(rule.destination, 200)), ` (${rule.encoding})`])] : "No rule uses it directly."),
    minors.length > 1 ? el("div", { class: "choose" }, el("label", null, "From ", from), el("label", null, "to ", to)) : null,
    result,
  );
}

/** @param {any} schema */
function fieldList(schema) {
  return el("ul", { class: "fields-list" }, [...fieldsOf(schema)].map(([name, field]) => el("li", null, el("code", { class: "client" }, shownLines(name)), " ", client(field.type, 300), field.fallback === undefined ? "" : [" = ", client(field.fallback, 100)], field.doc ? el("p", { class: "aside" }, client(field.doc, 400)) : null)));
}

/** @param {any} older @param {any} newer @param {string} from @param {string} to */
function diffList(older, newer, from, to) {
  const rows = compared(fieldsOf(older), fieldsOf(newer));
  const changed = rows.filter((row) => row.what !== "same");
  const words = /** @type {Record<string, ["ok" | "warn" | "bad", string]>} */ ({ added: ["ok", "added"], removed: ["bad", "removed"], changed: ["warn", "changed"] });
  return el(
    "div",
    null,
    el("p", { role: "status" }, changed.length ? `${plural(changed.length, "field")} ${changed.length === 1 ? "differs" : "differ"} from ${from} to ${to}; ${rows.length - changed.length} are the same.` : `Fields, types and defaults of ${from} and ${to} are the same.`),
    el(
      "ul",
      { class: "fields-list" },
      changed.map((row) => {
        const [state, word] = words[row.what] ?? ["warn", row.what];
        return el(
          "li",
          { class: row.what },
          badge(state, word),
          " ",
          el("code", { class: "client" }, shownLines(row.path)),
          el("div", { class: "sides" }, row.before === null ? null : el("del", null, client(row.before, 400)), row.after === null ? null : el("ins", null, client(row.after, 400))),
          row.doc ? el("p", { class: "aside" }, client(row.doc, 400)) : null,
        );
      }),
    ),
  );
}
