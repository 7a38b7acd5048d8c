/** Questions before something is changed, and what became of it. */

import { Problem } from "./api.js";
import { add, badge, client, el, icon } from "./dom.js";
import { sentence } from "./text.js";

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {(string | Node)[]} text paragraphs
 * @property {string} act the word on the button
 * @property {string} [type] what must be typed before it can be pressed
 * @property {() => Promise<string>} perform does it, and returns the message to show
 */

/**
 * A button that changes something. Callers without the right do not see it (`read-only` of the page).
 * @param {import("./dom.js").Attributes} attributes
 * @param {string} word
 */
export function action(attributes, word) {
  return el("button", { type: "button", ...attributes, class: `change-button ${attributes.class ?? ""}` }, word);
}

/**
 * Ask, and do it if the answer is yes. A refusal is shown in place, so that no typed text is lost.
 * @param {Question} question
 * @returns {Promise<boolean>} whether it was done
 */
export function confirm(question) {
  return new Promise((resolve) => {
    let done = false;
    const act = el("button", { type: "submit", class: "danger" }, question.act);
    const typed = question.type === undefined ? null : el("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": "Text to type" });
    const said = el("p", { class: "said", role: "alert" });
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", null, question.title),
      question.text.map((one) => el("p", null, one)),
      typed && el("label", { class: "typing" }, "To go on, type ", client(question.type), typed),
      said,
      el("div", { class: "buttons" }, el("button", { type: "button", class: "quiet", click: () => dialog.close() }, "Cancel"), act),
    );
    const dialog = el("dialog", { class: "question", "aria-label": question.title }, form);
    act.disabled = typed !== null;
    typed?.addEventListener("input", () => (act.disabled = typed.value !== question.type));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (act.disabled) return;
      act.disabled = true;
      question.perform().then(
        (text) => {
          done = true;
          dialog.close();
          say(text, "ok");
        },
        (error) => {
          act.disabled = false;
          if (!(error instanceof Problem)) throw error;
          said.replaceChildren();
          add(said, error.what, " ", client(sentence(error.detail)), " ", error.advice);
        },
      );
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    document.body.append(dialog);
    dialog.showModal();
    (typed ?? form.querySelector("button"))?.focus();
  });
}

/**
 * Show something to be read, in front of the page.
 * @param {string} title
 * @param {...(Node | string)} content
 */
export function sheet(title, ...content) {
  const dialog = el(
    "dialog",
    { class: "sheet", "aria-label": title },
    el("header", null, el("h2", null, title), el("button", { type: "button", class: "bare", "aria-label": "Close", click: () => dialog.close() }, icon("close"))),
    el("div", { class: "body", tabindex: 0, role: "group", "aria-label": title }, ...content),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Show the result of an action. It is read out once, and gone after a while.
 * @param {string} text
 * @param {"ok" | "bad"} state
 */
export function say(text, state) {
  const place = document.getElementById("toasts");
  if (!place) return;
  const toast = el("div", { class: `toast ${state}` }, badge(state, text));
  place.append(toast);
  setTimeout(() => toast.remove(), 6000);
}

/**
 * A refusal in the place of what was asked for.
 * @param {Problem} problem
 */
export function refusal(problem) {
  return el(
    "div",
    { class: "refusal", role: "alert" },
    icon("bad"),
    el("div", null, el("h2", null, problem.what), el("p", null, client(sentence(problem.detail))), problem.advice ? el("p", null, problem.advice) : null),
  );
}

/**
 * Nothing to see, and why that is.
 * @param {string} title
 * @param {string} [text]
 */
export function nothing(title, text) {
  return el("div", { class: "nothing" }, el("p", { class: "title" }, title), text ? el("p", null, text) : null);
}
