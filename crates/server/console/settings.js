// How a conversation's answers are made: a form, and the fields of a request that come of it.

import { el } from "./dom.js";

/** Name, label, what the form's field is like, and what becomes of its text in a request. */
const number = (text) => Number(text);
const FIELDS = [
  [
    "temperature",
    "Temperature",
    { type: "number", min: 0, max: 2, step: 0.05, placeholder: "model's" },
    number,
  ],
  ["top_p", "Top p", { type: "number", min: 0, max: 1, step: 0.01, placeholder: "1" }, number],
  ["top_k", "Top k", { type: "number", min: 0, step: 1, placeholder: "off" }, number],
  [
    "max_tokens",
    "Tokens at most",
    { type: "number", min: 1, step: 1, placeholder: "as many as fit" },
    number,
  ],
  ["seed", "Seed", { type: "number", min: 0, step: 1, placeholder: "a new one each time" }, number],
  ["stop", "Stop at", { type: "text", placeholder: "a text" }, (text) => [text]],
];

/** Fills the form for a conversation; `changed()` is called after every change. */
export function showSettings(form, settings, changed) {
  const text = (name, label, properties) => {
    const area = el("textarea", { name, ...properties });
    area.value = settings[name] ?? "";
    return el("label.whole", {}, label, area);
  };
  const fields = FIELDS.map(([name, label, properties]) => {
    const input = el("input", { name, ...properties });
    input.value = settings[name] ?? "";
    return el("label", {}, label, input);
  });
  form.replaceChildren(
    text("system", "System prompt", { rows: 2, placeholder: "How the model should behave" }),
    ...fields,
    text("tools", "Tools (a JSON list, as in the API)", {
      rows: 2,
      spellcheck: "false",
      placeholder: '[{"type": "function", "function": {"name": …}}]',
    }),
  );
  form.onsubmit = (event) => event.preventDefault();
  form.oninput = ({ target }) => {
    settings[target.name] = target.value;
    target.setCustomValidity(target.name === "tools" && !isList(target.value) ? "This is no JSON list." : "");
    changed();
  };
  // Told when the field is left, not at every letter.
  form.onchange = ({ target }) => target.reportValidity();
}

function isList(text) {
  if (text.trim() === "") return true;
  try {
    return Array.isArray(JSON.parse(text));
  } catch {
    return false;
  }
}

/** The fields of a request for the conversation's next answer. */
export function requestOf({ settings, messages }) {
  const body = { model: "default", stream: true, stream_options: { include_usage: true }, messages: [] };
  for (const [name, , , read] of FIELDS) {
    const text = (settings[name] ?? "").trim();
    if (text !== "") body[name] = read(text);
  }
  if (settings.tools?.trim() && isList(settings.tools)) body.tools = JSON.parse(settings.tools);
  if (settings.system?.trim()) body.messages.push({ role: "system", content: settings.system });
  body.messages.push(...messages.filter(isSaid).map(messageOf));
  return body;
}

/** An answer that failed before it said anything is none. */
const isSaid = (message) =>
  message.role !== "assistant" || message.content !== "" || message.calls.length > 0;

function messageOf({ role, content, calls, call }) {
  if (role === "tool") return { role, content, tool_call_id: call };
  if (role === "assistant" && calls.length > 0) {
    const list = calls.map(({ id, name, arguments: json }) => ({
      id,
      type: "function",
      function: { name, arguments: json },
    }));
    return { role, content, tool_calls: list };
  }
  return { role, content };
}
