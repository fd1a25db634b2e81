// The messages of a conversation as they are shown, and what can be done with each.

import { el } from "./dom.js";
import { count, millis, number, percent } from "./format.js";
import { copyText, show as showMarkdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };
const ENDS = { length: "reached its limit of tokens", stopped: "stopped" };
/** So near to the end somebody wants to see what comes. */
const NEAR_PX = 60;

export class Thread {
  /** `does`: what happens on `edit(at, text)`, `again(at)` and `result(at, call, text)`. */
  constructor(root, does) {
    Object.assign(this, { root, does, last: null });
  }

  /** Shows all messages; the last one may still grow. */
  show(messages, isGrowing) {
    this.last = null;
    const articles = messages.map((message, at) =>
      this.article(message, at, isGrowing && at === messages.length - 1),
    );
    if (messages.length === 0)
      articles.push(
        el("p.nothing", {}, "Write a message below. What you write stays in this browser and on this line."),
      );
    this.root.replaceChildren(...articles);
    this.root.scrollTop = this.root.scrollHeight;
  }

  /** The last message has grown. */
  grow() {
    if (!this.last || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (this.last) this.follow(() => this.last());
    });
  }

  /** Changes something, and keeps the end in sight if it was. */
  follow(change) {
    const { root } = this;
    const wasNear = root.scrollHeight - root.scrollTop - root.clientHeight < NEAR_PX;
    change();
    if (wasNear) root.scrollTop = root.scrollHeight;
  }

  article(message, at, isGrowing) {
    const body = el("div.body");
    const article = el(
      `article.message.${message.role}`,
      { "aria-label": NAMES[message.role] },
      el("h3", {}, NAMES[message.role]),
      body,
    );
    if (message.role === "assistant") {
      const draw = answer(article, body, message);
      draw(isGrowing);
      if (isGrowing) this.last = () => draw(true);
      else this.afterAnswer(article, message, at);
    } else {
      body.append(el("p.said", {}, message.content));
      if (message.role === "user")
        article.append(
          actions(
            ["Edit", () => this.edit(article, message, at)],
            ["Copy", (button) => copyText(message.content, button)],
          ),
        );
    }
    return article;
  }

  afterAnswer(article, message, at) {
    const open = message.calls.filter(({ id }) => !message.answered?.includes(id));
    for (const call of open) article.append(this.resultForm(call, at));
    article.append(
      actions(
        ["Regenerate", () => this.does.again(at)],
        ["Copy", (button) => copyText(message.content, button)],
      ),
    );
  }

  resultForm(call, at) {
    const input = el("textarea", {
      rows: 2,
      "aria-label": `Result of ${call.name}`,
      placeholder: `What ${call.name} gives back`,
    });
    const form = el("form.result", {}, input, el("button.small", {}, "Send the result"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.does.result(at, call.id, input.value);
    });
    return form;
  }

  edit(article, message, at) {
    const input = el("textarea", {
      rows: Math.min(message.content.split("\n").length + 1, 12),
      "aria-label": "Edit the message",
    });
    input.value = message.content;
    const form = el(
      "form.edit",
      {},
      input,
      el(
        "div.actions",
        {},
        el("button.small.primary", {}, "Send again"),
        el("button.small", { type: "reset" }, "Leave it"),
      ),
    );
    const body = article.querySelector(".body");
    const shown = [...body.childNodes];
    form.addEventListener("reset", () => {
      body.replaceChildren(...shown);
      article.querySelector(".actions button")?.focus();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.does.edit(at, input.value);
    });
    body.replaceChildren(form);
    input.focus();
  }
}

function actions(...list) {
  const button = ([name, act]) => {
    const made = el("button.quiet.small", { type: "button" }, name);
    made.addEventListener("click", () => act(made));
    return made;
  };
  return el("div.actions", {}, ...list.map(button));
}

/** Gives a function that shows the answer as it is now. */
function answer(article, body, message) {
  const reasoning = folded("Reasoning");
  const text = el("div.markdown");
  const calls = el("div");
  const foot = el("p.foot");
  body.append(reasoning.root, text, calls, foot);
  return (isGrowing) => {
    article.toggleAttribute("data-growing", isGrowing);
    reasoning.root.hidden = message.reasoning === "";
    reasoning.text.textContent = message.reasoning;
    showMarkdown(text, message.content);
    while (calls.childElementCount < message.calls.length) calls.append(folded("", "pre").root);
    message.calls.forEach((call, at) => {
      const [summary, json] = calls.children[at].children;
      summary.textContent = `Calls ${call.name}`;
      json.textContent = pretty(call.arguments);
    });
    foot.replaceChildren(...figures(message, isGrowing));
  };
}

function folded(name, inside = "div") {
  const text = el(`${inside}.inside`);
  return { root: el("details.folded", {}, el("summary", {}, name), text), text };
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function figures({ figures, finish, error }, isGrowing) {
  const parts = [];
  if (figures.rate > 0) parts.push(`${number(figures.rate)} tokens/s`);
  if (figures.firstMs !== undefined) parts.push(`first token ${millis(figures.firstMs)}`);
  if (figures.tokens !== undefined) parts.push(`${count(figures.tokens)} tokens`);
  if (figures.cached > 0)
    parts.push(`${count(figures.cached)} of ${count(figures.cached + figures.prompt)} prompt tokens cached`);
  if (figures.drafted > 0)
    parts.push(
      `${percent(figures.accepted / figures.drafted)} of ${count(figures.drafted)} guesses accepted`,
    );
  if (ENDS[finish]) parts.push(ENDS[finish]);
  if (isGrowing && parts.length === 0) parts.push("waiting for the first token");
  const nodes = parts.map((part) => el("span", {}, part));
  if (error) nodes.push(el("span.error", { role: "alert" }, error));
  return nodes;
}
