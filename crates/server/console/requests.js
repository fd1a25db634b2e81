// Who waits, who runs, and who ended last.

import { byId, el, List, mark, say } from "./dom.js";
import { clock, count, millis, number, percent, share } from "./format.js";
import { cancelRequest, ServerError } from "./server.js";
import { hueOf } from "./track.js";

const RATE_MS = 2500;

const LIVE = [
  ["request", ""],
  ["phase", ""],
  ["tokens", ""],
  ["tokens/s", ""],
  ["accepted", "wide"],
  ["cached", "wide"],
  ["prompt", "wide"],
  ["", ""],
];
const ENDED = [
  ["request", ""],
  ["end", ""],
  ["tokens", ""],
  ["tokens/s", ""],
  ["first token", ""],
  ["accepted", "wide"],
  ["cached", "wide"],
  ["prompt", "wide"],
  ["at", "wide"],
];

export class RequestsView {
  requests = { live: [], ended: [] };
  sequences = new Map();
  /** Tokens of each live request over the last while. */
  past = new Map();

  constructor() {
    this.nothing = el(
      "p.nothing",
      {},
      "No request yet. Write one in the chat, or send one to ",
      el("code", {}, "/v1/chat/completions"),
      ".",
    );
    this.live = table("live", "Waiting and running", LIVE);
    this.ended = table("ended", "Ended last", ENDED);
    byId("requests").append(
      this.nothing,
      this.live.root,
      el("div.ended-scroll", { tabindex: 0, "aria-label": "Requests that ended last" }, this.ended.root),
    );
    this.liveRows = new List(
      this.live.body,
      ({ id }) => id,
      makeLive,
      (row, request) => this.updateLive(row, request),
    );
    this.endedRows = new List(
      this.ended.body,
      ({ id, at }) => `${id}/${at}`,
      makeEnded,
      () => {},
    );
  }

  showRequests(requests) {
    this.requests = requests;
    this.endedRows.show(requests.ended);
    this.draw();
  }

  showLine(line) {
    this.sequences = new Map(line.sequences.map((sequence) => [sequence.request, sequence]));
    this.draw();
  }

  draw() {
    const { live, ended } = this.requests;
    const ids = new Set(live.map(({ id }) => id));
    for (const id of this.past.keys()) if (!ids.has(id)) this.past.delete(id);
    this.liveRows.show(live);
    this.live.root.hidden = live.length === 0;
    this.ended.root.hidden = ended.length === 0;
    this.ended.root.parentElement.hidden = ended.length === 0;
    this.nothing.hidden = live.length + ended.length > 0;
    const waiting = live.filter(({ id }) => !this.sequences.has(id)).length;
    say(
      byId("requests-note"),
      live.length === 0 ? "idle" : `${live.length - waiting} running, ${waiting} waiting`,
    );
  }

  updateLive(row, request) {
    const sequence = this.sequences.get(request.id);
    const phase = sequence?.phase ?? "queued";
    say(row.phase, phase);
    mark(row.phase, "data-phase", phase);
    const made = sequence?.generated_tokens ?? 0;
    say(row.tokens, request.max_tokens ? `${count(made)} / ${count(request.max_tokens)}` : count(made));
    say(row.rate, phase === "decode" ? number(this.rate(request.id, made)) : "–");
    say(row.accepted, percent(share(sequence?.accepted_tokens, sequence?.drafted_tokens)));
    say(row.cached, count(sequence?.cached_tokens ?? 0));
    say(row.prompt, count(request.prompt_tokens));
    row.cancel.hidden = !request.yours;
  }

  /** Tokens per second of a request, of late. */
  rate(id, tokens) {
    const now = performance.now();
    if (!this.past.has(id)) this.past.set(id, []);
    const past = this.past.get(id);
    past.push({ now, tokens });
    while (past.length > 2 && past[1].now < now - RATE_MS) past.shift();
    const first = past[0];
    return now - first.now < 200 ? NaN : (1000 * (tokens - first.tokens)) / (now - first.now);
  }
}

function table(id, caption, columns) {
  const body = el("tbody");
  const heads = columns.map(([name, kind]) => el("th", { scope: "col", class: kind || null }, name));
  const root = el(
    "table.requests",
    { id, hidden: true },
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...heads)),
    body,
  );
  return { root, body };
}

const named = (id) => [el("i.swatch", { "data-hue": hueOf(id) }), `#${id}`];

function makeLive({ id }) {
  const row = {};
  const cell = (name, kind) => {
    row[name] = el("td", { class: kind ?? null });
    return row[name];
  };
  row.phase = el("span.phase");
  row.cancel = el("button.small", { type: "button", "aria-label": `Cancel request ${id}` }, "Cancel");
  row.cancel.addEventListener("click", () => cancel(id, row.cancel));
  row.root = el(
    "tr",
    {},
    el("td", {}, ...named(id)),
    el("td", {}, row.phase),
    cell("tokens"),
    cell("rate"),
    cell("accepted", "wide"),
    cell("cached", "wide"),
    cell("prompt", "wide"),
    el("td", {}, row.cancel),
  );
  return row;
}

async function cancel(id, button) {
  button.disabled = true;
  try {
    await cancelRequest(id);
  } catch (error) {
    // One that ended meanwhile needs no cancelling.
    if (!(error instanceof ServerError && error.status === 404)) button.title = error.message;
    button.disabled = false;
  }
}

function makeEnded(request) {
  const cell = (words, kind) => el("td", { class: kind ?? null }, words);
  const root = el(
    "tr",
    {},
    el("td", {}, ...named(request.id)),
    el("td", {}, el("span.phase", { "data-phase": request.finish }, request.finish)),
    cell(count(request.generated_tokens)),
    cell(number(request.tokens_per_second)),
    cell(millis(request.first_token_ms)),
    cell(percent(share(request.accepted_tokens, request.drafted_tokens)), "wide"),
    cell(count(request.cached_tokens), "wide"),
    cell(count(request.prompt_tokens), "wide"),
    cell(clock(request.at), "wide"),
  );
  return { root };
}
