// The line: its figures, its stages, the links between them, and what moves.

import { byId, el, List, mark, say } from "./dom.js";
import { Flow } from "./flow.js";
import { bytes, clock, count, millis, number, percent, share } from "./format.js";
import { inline } from "./markdown.js";
import { IS_OUT, Track } from "./track.js";

/** A stage with the link before it is no narrower than this; where they do not fit, they scroll. */
const STAGE_PX = 240;
const FRONT_PX = 100;

export class LineView {
  constructor(series) {
    this.series = series;
    this.flow = new Flow();
    this.figures = figures(byId("figures"), [
      ["speed", "Tokens per second"],
      ["first", "Last first token"],
      ["loop", "Round of the line"],
      ["flight", "Windows under way"],
      ["stale", "Windows stale"],
      ["queue", "Requests waiting"],
    ]);
    legend(byId("legend"));
    this.front = el("div.front", {}, el("h3", {}, "Front"), el("p.where", {}, "queue, text, guesses"));
    const hops = el("div.hops");
    this.stages = new List(
      hops,
      ({ at }) => at,
      ({ at }) => makeStage(at),
      (made, stage) => this.update(made, stage),
    );
    this.spares = new List(
      byId("spares"),
      ({ at }) => at,
      makeSpare,
      showSpare,
    );
    byId("track").append(el("div.stages", {}, this.front, hops));
    this.track = new Track(byId("track"), () => [this.front, ...hops.querySelectorAll(".stage")], this.flow);
  }

  /** Shows a status. */
  show(line, firstToken) {
    const { figures, series } = this;
    say(figures.speed, number(series.tokensPerSecond()));
    say(figures.first, millis(firstToken));
    const hasRounds = line.windows.live > 0;
    figures.loop.replaceChildren(
      hasRounds ? millis(line.loop_ms) : "–",
      small(hasRounds ? ` ${millis(line.loop_ms - line.ideal_ms)} waiting` : ""),
    );
    figures.flight.replaceChildren(
      count(line.windows_in_flight),
      small(` at most ${line.windows.in_flight_max} each`),
    );
    figures.stale.replaceChildren(
      percent(line.windows.sent > 0 ? line.stale_share : NaN),
      small(` of ${count(line.windows.sent)}`),
    );
    say(figures.queue, count(line.queue));
    const stages = line.stages.map((stage, at) => ({ ...stage, at, before: line.stages[at - 1] }));
    this.stages.show(stages);
    this.spares.show(line.spares.map((spare, at) => ({ ...spare, at })));
    byId("spares").hidden = line.spares.length === 0;
    const track = byId("track");
    const isCrowded = stages.length * STAGE_PX > track.clientWidth - FRONT_PX;
    mark(track, "data-crowded", isCrowded ? "" : null);
    // What scrolls must be reached with the keyboard.
    mark(track, "tabindex", isCrowded ? 0 : null);
    if (stages.some(({ state }) => IS_OUT.has(state))) this.flow.clear(performance.now());
    this.track.loopMs = line.loop_ms;
    this.track.measure();
    this.track.wake();
  }

  /** Shows what has moved. */
  move({ movements }) {
    this.flow.hear(movements, performance.now());
    this.track.wake();
  }

  update(made, stage) {
    const { card, link } = made;
    const isOut = IS_OUT.has(stage.state);
    this.remember(made, stage, isOut);
    mark(card, "data-state", stage.state);
    card.style.setProperty("--busy", isOut ? 0 : stage.busy.toFixed(3));
    say(made.badge, stage.state === "down" || stage.state === "gone" ? `✕ ${stage.state}` : stage.state);
    say(made.where, place(stage));
    made.where.title = made.where.textContent;
    say(made.layers, `${stage.layers[0]}–${stage.layers[1] - 1}`);
    say(made.memory, stage.weight_bytes === undefined ? "–" : bytes(stage.weight_bytes + stage.kv_bytes));
    made.memory.title =
      stage.weight_bytes === undefined
        ? ""
        : `weights ${bytes(stage.weight_bytes)}, keys and values ${bytes(stage.kv_bytes)}`;
    say(made.busy, percent(stage.busy));
    say(made.wasted, percent(share(stage.work.wasted_rows, stage.work.rows)));
    made.facts.hidden = isOut;
    made.why.hidden = !stage.reason && !made.was;
    const reason = stage.reason ? el("b", {}, stage.reason) : null;
    const rest = stage.advice ? inline(stage.advice) : [stage.reason ? "" : made.was];
    made.why.replaceChildren(...[reason, ...rest].filter(Boolean));
    mark(link, "data-down", isOut ? "" : null);
    if (stage.at > 0) showLink(link, stage, this.series.rowsPerSecond(stage.at));
  }

  /** Keeps when a stage was lost last: one that comes back at once is gone too fast to be seen. */
  remember(made, stage, isOut) {
    const now = Date.now();
    if (isOut) made.outSince ??= now;
    else if (made.outSince && stage.state === "ready") {
      const took = (now - made.outSince) / 1000;
      made.was = `It was down at ${clock(made.outSince / 1000)}, for ${number(took)} s.`;
      made.outSince = null;
    }
  }
}

function figures(parent, names) {
  const made = {};
  for (const [key, title] of names) {
    made[key] = el("dd", { id: `figure-${key}` }, "–");
    parent.append(el("div", {}, el("dt", {}, title), made[key]));
  }
  return made;
}

const small = (words) => el("small", {}, words);

function legend(parent) {
  parent.append(
    el("span", {}, el("i"), "window of guesses"),
    el("span", {}, el("i.stale"), "stale"),
    el("span", {}, el("i.chunk"), "piece of a prompt"),
  );
}

function makeStage(at) {
  const made = { was: "", outSince: null };
  const fact = (name) => {
    made[name] = el("dd");
    return [el("dt", {}, name), made[name]];
  };
  made.badge = el("span.badge");
  made.where = el("p.where");
  made.facts = el("dl.facts", {}, ...fact("layers"), ...fact("memory"), ...fact("busy"), ...fact("wasted"));
  made.why = el("p.why", { hidden: true });
  made.card = el(
    "article.stage",
    { "aria-label": `Stage ${at}` },
    el("h3", {}, `Stage ${at}`, made.badge),
    made.where,
    made.facts,
    made.why,
    el("div.meter", {}, el("i")),
  );
  made.link = el(at === 0 ? "div.link.first" : "div.link");
  made.root = el("div.hop", {}, made.link, made.card);
  return made;
}

/** A machine without a place in the line. */
function makeSpare() {
  const made = { badge: el("span.badge"), where: el("span.where"), layers: el("span"), why: el("span.why") };
  made.root = el("li.spare", {}, made.badge, made.where, made.layers, made.why);
  return made;
}

function showSpare(made, spare) {
  mark(made.root, "data-state", spare.state);
  say(made.badge, spare.state === "spare" ? "standing by" : `spare, ${spare.state}`);
  say(made.where, place(spare));
  say(made.layers, spare.layers ? `layers ${spare.layers[0]}–${spare.layers[1] - 1}` : "no layers yet");
  made.why.replaceChildren(spare.reason ?? "", " ", ...inline(spare.advice ?? ""));
}

/** Which machine and process. */
function place({ address, pid }) {
  const where = address === "local" ? "in the front's process" : address || "no address yet";
  return pid ? `${where} · pid ${pid}` : where;
}

function showLink(link, stage, rowsPerSecond) {
  const before = stage.before?.row_bytes ?? 0;
  const rtt = stage.rtt_ms === undefined ? "–" : millis(stage.rtt_ms);
  link.replaceChildren(
    el("b", {}, rtt),
    el("span", {}, before > 0 ? `${bytes(rowsPerSecond * before)}/s` : "–"),
  );
  const rows = `hidden rows that pass to it (${bytes(before)} each)`;
  link.title = `Round trip between the front and stage ${stage.at}; ${rows}`;
}
