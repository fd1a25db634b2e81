// The page: which view is shown, the keyboard, and who hears what from the server.

import { ChatView } from "./chat.js";
import { byId, el, mark, say } from "./dom.js";
import { parameters, percent } from "./format.js";
import { LineView } from "./line.js";
import { RequestsView } from "./requests.js";
import { Series } from "./series.js";
import { follow } from "./server.js";
import { SpeedView } from "./speed.js";
import { nextTheme, startTheme } from "./theme.js";
import { IS_OUT } from "./track.js";

const VIEWS = ["line", "chat"];

startTheme();
const series = new Series();
const line = new LineView(series);
const requests = new RequestsView();
const speed = new SpeedView(series);
const chat = new ChatView();
let lastFirstToken = NaN;

// ---- what the server tells --------------------------------------------------------------------------------------

const hear = {
  status(status) {
    const now = performance.now();
    showReadiness(status);
    series.hear(status.line, now);
    line.show(status.line, lastFirstToken);
    requests.showLine(status.line);
    if (shown === "line") speed.draw(now);
  },
  requests(told) {
    const now = performance.now();
    series.hearEnded(told.ended, now, Date.now());
    lastFirstToken =
      told.ended.find((request) => request.first_token_ms !== undefined)?.first_token_ms ?? NaN;
    requests.showRequests(told);
    if (shown === "line") speed.draw(now);
  },
  movements(told) {
    if (shown === "line") line.move(told);
  },
};

function showReadiness({ ready, reason, progress, model, line: { stages } }) {
  const isOut = stages.some(({ state }) => IS_OUT.has(state));
  showState(
    ready ? "ready" : isOut ? "down" : "starting",
    ready ? "Ready" : isOut ? "Line down" : "Starting",
  );
  const done = !isOut && progress > 0 && progress < 1 ? ` (${percent(progress)})` : "";
  showNotice(ready ? "" : `Not ready: ${reason}${done}.`, isOut ? "bad" : "");
  if (!model) return;
  const facts = [
    model.architecture,
    parameters(model.n_params),
    `context ${model.n_ctx.toLocaleString("en")}`,
  ];
  byId("model").replaceChildren(el("b", {}, model.id), ` · ${facts.filter(Boolean).join(" · ")}`);
  byId("model").title = byId("model").textContent;
  document.title = `${model.id} · Paceline`;
}

function showState(state, words) {
  mark(byId("state"), "data-state", state);
  say(byId("state"), words);
}

function showNotice(words, kind) {
  const notice = byId("notice");
  say(notice, words);
  mark(notice, "data-kind", kind || null);
  notice.hidden = words === "";
}

function lost(reason) {
  showState("offline", "No connection");
  showNotice(`${reason} What is shown may be old; this page goes on trying.`, "bad");
}

// ---- views ------------------------------------------------------------------------------------------------------

let shown = null;

function show() {
  const asked = location.hash.slice(1);
  shown = VIEWS.includes(asked) ? asked : "line";
  for (const view of VIEWS) {
    byId(`view-${view}`).hidden = view !== shown;
    mark(byId(`to-${view}`), "aria-current", view === shown ? "page" : null);
  }
  if (shown === "chat") chat.shown();
  else speed.draw(performance.now());
}

function go(view) {
  location.hash = view;
}

// ---- keyboard ---------------------------------------------------------------------------------------------------

const KEYS = {
  1: () => go("line"),
  2: () => go("chat"),
  n: () => {
    go("chat");
    chat.startNew();
  },
  "/": () => {
    go("chat");
    chat.write();
  },
  t: nextTheme,
  "?": () => byId("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  const isWriting = event.target.closest("input, textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (!chat.stop()) event.target.blur();
    return;
  }
  const act = isWriting ? null : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

byId("help-open").addEventListener("click", () => byId("help").showModal());
window.addEventListener("hashchange", show);
show();
follow((name, value) => hear[name]?.(value), lost);
