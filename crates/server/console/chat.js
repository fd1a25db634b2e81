// The chat: which conversation is shown, and what sending, stopping, editing and regenerating mean.

import { blank, receive } from "./answer.js";
import { Conversations } from "./conversations.js";
import { byId, el, List, mark, say } from "./dom.js";
import { requestOf, showSettings } from "./settings.js";
import { Thread } from "./thread.js";

const SETTINGS = "paceline.settings";
const TALLEST_PX = 220;

export class ChatView {
  /** Ends the answer that comes now. */
  running = null;

  constructor() {
    this.kept = new Conversations();
    this.thread = new Thread(byId("thread"), {
      edit: (at, text) => this.edit(at, text),
      again: (at) => this.again(at),
      result: (at, call, text) => this.result(at, call, text),
    });
    this.list = new List(
      byId("talks"),
      ({ id }) => id,
      (talk) => this.makeEntry(talk),
      (made, talk) => this.updateEntry(made, talk),
    );
    this.listen();
    this.open(this.kept.all[0] ?? Conversations.make(lastSettings()));
  }

  listen() {
    byId("talk-new").addEventListener("click", () => this.startNew());
    byId("talks-export").addEventListener("click", () =>
      save("paceline-conversations.json", this.kept.export()),
    );
    byId("talks-delete").addEventListener("click", () => this.removeAll());
    byId("stop").addEventListener("click", () => this.stop());
    toggles(byId("settings-open"), byId("settings"));
    byId("talks-open").addEventListener("click", () => {
      const isOpen = byId("view-chat").toggleAttribute("data-talks");
      mark(byId("talks-open"), "aria-expanded", String(isOpen));
    });
    const message = byId("message");
    message.addEventListener("input", () => fit(message));
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** The view has come into sight. */
  shown() {
    byId("thread").scrollTop = byId("thread").scrollHeight;
    if (matchMedia("(min-width: 900px)").matches) this.write();
  }

  write() {
    byId("message").focus();
  }

  open(talk) {
    this.stop();
    this.talk = talk;
    showSettings(byId("settings"), talk.settings, () => {
      localStorage.setItem(SETTINGS, JSON.stringify(talk.settings));
      if (talk.messages.length > 0) this.kept.keep(talk);
    });
    this.draw();
  }

  openKept(id) {
    if (id === this.talk.id) return;
    const talk = this.kept.find(id);
    if (talk) this.open(talk);
    else this.draw();
  }

  startNew() {
    this.open(Conversations.make(lastSettings()));
    this.write();
  }

  draw() {
    const isGrowing = this.running !== null;
    this.thread.show(this.talk.messages, isGrowing);
    say(byId("talk-title"), this.talk.title || "New conversation");
    this.list.show(this.kept.all);
    byId("send").hidden = isGrowing;
    byId("stop").hidden = !isGrowing;
  }

  send() {
    const message = byId("message");
    const content = message.value.trim();
    if (content === "" || this.running) return;
    message.value = "";
    fit(message);
    this.talk.messages.push({ role: "user", content });
    this.run();
  }

  /** Asks for the next answer. */
  async run() {
    const { talk } = this;
    const body = requestOf(talk);
    const answer = blank();
    talk.messages.push(answer);
    const running = new AbortController();
    this.running = running;
    this.keep(talk);
    this.draw();
    await receive(answer, body, running.signal, () => {
      if (this.talk === talk) this.thread.grow();
    });
    // It may have been deleted meanwhile.
    if (this.kept.find(talk.id)) this.keep(talk);
    if (this.running !== running) return;
    this.running = null;
    const hadFocus = document.activeElement === byId("stop");
    this.draw();
    if (hadFocus) this.write();
  }

  /** Stops the answer that comes, if one does; whether it did. */
  stop() {
    if (!this.running) return false;
    this.running.abort();
    return true;
  }

  edit(at, text) {
    if (text.trim() === "") return;
    this.restart(at, { role: "user", content: text });
  }

  again(at) {
    this.restart(at);
  }

  /** Cuts the conversation at a message, puts another in its place, and goes on from there. */
  restart(at, ...instead) {
    if (this.running) return;
    this.talk.messages.splice(at, Infinity, ...instead);
    this.run();
  }

  result(at, call, content) {
    const answer = this.talk.messages[at];
    answer.answered = [...(answer.answered ?? []), call];
    this.talk.messages.push({ role: "tool", call, content });
    const isComplete = answer.calls.every(({ id }) => answer.answered.includes(id));
    if (isComplete && !this.running) {
      this.run();
      return;
    }
    this.keep(this.talk);
    this.draw();
  }

  keep(talk) {
    if (!this.kept.keep(talk)) say(byId("talk-title"), "This browser has no room left for conversations");
  }

  removeAll() {
    if (!confirm("Delete all conversations from this browser?")) return;
    this.kept.removeAll();
    this.startNew();
  }

  makeEntry({ id }) {
    const open = el("button.quiet.name", { type: "button" });
    open.addEventListener("click", () => {
      byId("view-chat").removeAttribute("data-talks");
      mark(byId("talks-open"), "aria-expanded", "false");
      this.openKept(id);
    });
    const remove = el("button.quiet.small", { type: "button" }, "✕");
    remove.addEventListener("click", () => this.remove(id));
    return { root: el("li", {}, open, remove), open, remove };
  }

  updateEntry({ open, remove }, talk) {
    say(open, talk.title || "Untitled");
    mark(open, "aria-current", talk.id === this.talk.id ? "true" : null);
    mark(remove, "aria-label", `Delete ${talk.title || "this conversation"}`);
  }

  remove(id) {
    this.kept.remove(id);
    if (this.talk.id === id) this.open(this.kept.all[0] ?? Conversations.make(lastSettings()));
    else this.draw();
  }
}

function lastSettings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

function toggles(button, panel) {
  button.addEventListener("click", () => {
    panel.hidden = !panel.hidden;
    mark(button, "aria-expanded", String(!panel.hidden));
    if (!panel.hidden) panel.querySelector("input, textarea")?.focus();
  });
}

/** As tall as its text, up to a limit. */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, TALLEST_PX)}px`;
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
