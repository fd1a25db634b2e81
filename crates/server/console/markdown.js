// Markdown as models write it, made into elements: never through markup, so that no text can do anything.

import { el } from "./dom.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
/** Lists and quotes within each other; deeper ones stay text. */
const DEEPEST = 8;
/** Where links may lead. */
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** Shows a text that may have grown: only blocks that have changed are made anew. */
export function show(container, text) {
  const parts = blocks(text);
  const made = container.blocks ?? [];
  let same = 0;
  while (same < parts.length && same < made.length && made[same] === parts[same].source) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const part of parts.slice(same)) container.append(draw(part, 0));
  container.blocks = parts.map(({ source }) => source);
}

/** Cuts a text into blocks: `{ kind, source, … }`. */
export function blocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const start = at;
    const block =
      fence(lines, at) ??
      single(lines, at) ??
      table(lines, at) ??
      quote(lines, at) ??
      list(lines, at) ??
      paragraph(lines, at);
    at = block.end;
    found.push({ ...block, source: `${block.kind}\n${lines.slice(start, at).join("\n")}` });
  }
  return found;
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, indent, mark, language] = open;
  const isClosing = (line) => line.trim().startsWith(mark) && line.trim().replaceAll(mark[0], "") === "";
  let end = at + 1;
  while (end < lines.length && !isClosing(lines[end])) end += 1;
  const code = lines
    .slice(at + 1, end)
    .map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line));
  return { kind: "code", language, code: code.join("\n"), end: Math.min(end + 1, lines.length) };
}

function single(lines, at) {
  const heading = HEADING.exec(lines[at]);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2], end: at + 1 };
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1 } : null;
}

function table(lines, at) {
  if (!lines[at].includes("|") || !TABLE_RULE.test(lines[at + 1] ?? "") || !lines[at + 1].includes("-"))
    return null;
  const head = cells(lines[at]);
  if (cells(lines[at + 1]).length !== head.length) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") end += 1;
  return { kind: "table", head, rows: lines.slice(at + 2, end).map(cells), end };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function quote(lines, at) {
  if (!QUOTE.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return {
    kind: "quote",
    text: lines
      .slice(at, end)
      .map((line) => line.replace(QUOTE, ""))
      .join("\n"),
    end,
  };
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const [, indent, mark] = first;
  const isOrdered = /\d/.test(mark);
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const isNext = item && item[1].length <= indent.length + 1;
    if (isNext && /\d/.test(item[2]) !== isOrdered) break;
    if (isNext) items.push([item[3]]);
    else if (line.trim() === "" && !continues(lines[end + 1], indent)) break;
    else if (line.trim() !== "" && !continues(line, indent) && lines[end - 1].trim() === "") break;
    else items.at(-1).push(line.replace(new RegExp(`^\\s{0,${indent.length + mark.length + 1}}`), ""));
  }
  return {
    kind: "list",
    isOrdered,
    start: Number.parseInt(mark, 10),
    items: items.map((item) => item.join("\n")),
    end,
  };
}

/** Whether a line belongs to the item above it. */
function continues(line, indent) {
  if (line === undefined || line.trim() === "") return false;
  return line.search(/\S/) > indent.length || ITEM.test(line);
}

function paragraph(lines, at) {
  let end = at + 1;
  const begins = (line, next) =>
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    ITEM.test(line) ||
    (line.includes("|") && TABLE_RULE.test(next ?? "") && (next ?? "").includes("-"));
  while (end < lines.length && lines[end].trim() !== "" && !begins(lines[end], lines[end + 1])) end += 1;
  return { kind: "paragraph", text: lines.slice(at, end).join("\n"), end };
}

// ---- blocks as elements -------------------------------------------------------------------------------------------

const DRAW = {
  code: ({ code, language }) => codeBlock(code, language),
  // A page has its own first headings.
  heading: ({ level, text }) => el(`h${Math.min(level + 2, 6)}`, {}, ...inline(text)),
  rule: () => el("hr"),
  paragraph: ({ text }) => el("p", {}, ...inline(text)),
  quote: ({ text }, depth) => el("blockquote", {}, ...inner(text, depth)),
  list: ({ isOrdered, start, items }, depth) =>
    el(
      isOrdered ? "ol" : "ul",
      { start: isOrdered && start !== 1 ? start : null },
      ...items.map((item) => el("li", {}, ...itemParts(item, depth))),
    ),
  table: ({ head, rows }) =>
    el(
      "div.table",
      { tabindex: 0 },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...head.map((cell) => el("th", { scope: "col" }, ...inline(cell))))),
        el(
          "tbody",
          {},
          ...rows.map((row) => el("tr", {}, ...head.map((_, at) => el("td", {}, ...inline(row[at] ?? ""))))),
        ),
      ),
    ),
};

const draw = (block, depth) => DRAW[block.kind](block, depth);

function inner(text, depth) {
  return depth >= DEEPEST ? [text] : blocks(text).map((block) => draw(block, depth + 1));
}

/** An item of one paragraph is as tight as a line. */
function itemParts(item, depth) {
  const parts = depth >= DEEPEST ? [] : blocks(item);
  if (parts[0]?.kind !== "paragraph") return inner(item, depth);
  return [...inline(parts[0].text), ...parts.slice(1).map((block) => draw(block, depth + 1))];
}

function codeBlock(code, language) {
  const copy = el("button.small", { type: "button", "aria-label": "Copy the code" }, "Copy");
  copy.addEventListener("click", () => copyText(code, copy));
  return el(
    "div.code",
    {},
    el("header", {}, el("span", {}, language || "code"), copy),
    el("pre", { tabindex: 0 }, el("code", {}, code)),
  );
}

/** Puts a text on the clipboard and says so on the button. */
export async function copyText(text, button) {
  const before = button.dataset.words ?? button.textContent;
  button.dataset.words = before;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}

// ---- within a line ------------------------------------------------------------------------------------------------

/** Each way to write something, the first that matches counts. */
const INLINE = [
  [/^\\([\\`*_{}[\]()#+\-.!|~>])/, ([, sign]) => sign],
  [/^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, ([, , code]) => el("code", {}, code.trim() || code)],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*/, ([, text]) => el("strong", {}, ...inline(text))],
  [/^__(?=\S)([\s\S]*?\S)__(?!\w)/, ([, text]) => el("strong", {}, ...inline(text))],
  [/^\*(?=[^\s*])([^*]*[^\s*])\*/, ([, text]) => el("em", {}, ...inline(text))],
  [/^_(?=[^\s_])([^_]*[^\s_])_(?!\w)/, ([, text]) => el("em", {}, ...inline(text))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, ([, text]) => el("del", {}, ...inline(text))],
  [
    /^!?\[([^\]]*)\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"]*")?\s*\)/,
    ([whole, text, to]) => link(to, text || to, whole),
  ],
  [/^<((?:https?|mailto):[^\s<>]+)>/, ([whole, to]) => link(to, to, whole)],
  [/^https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"]/, ([to]) => link(to, to, to)],
  [/^ {2,}\n|^\\\n/, () => el("br")],
];
/** What may begin one of them. */
const SIGNS = /[\\`*_~![<\n ]|https?:/g;

/** A line's text as nodes. */
export function inline(text) {
  const nodes = [];
  let plain = "";
  let at = 0;
  while (at < text.length) {
    SIGNS.lastIndex = at;
    const sign = SIGNS.exec(text);
    const next = sign ? sign.index : text.length;
    plain += text.slice(at, next);
    at = next;
    if (at >= text.length) break;
    const found = /\w/.test(text[at - 1] ?? "") && text[at] === "_" ? null : match(text.slice(at));
    if (!found) {
      plain += text[at];
      at += 1;
      continue;
    }
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(found.node);
    at += found.length;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function match(text) {
  for (const [pattern, make] of INLINE) {
    const found = pattern.exec(text);
    if (found) return { node: make(found), length: found[0].length };
  }
  return null;
}

/** A link if it leads to a place that it may lead to, else its text. Pictures become links too: nothing is fetched. */
function link(to, words, whole) {
  const url = URL.canParse(to) ? new URL(to) : null;
  if (!url || !SCHEMES.has(url.protocol)) return whole;
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, words);
}
