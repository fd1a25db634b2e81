// The rail below the stages and what moves on it. Knows pixels and frames, not what the movements mean.

import { mark, say, svg } from "./dom.js";

/** States of a stage that does not compute. */
export const IS_OUT = new Set(["down", "failed", "gone"]);

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** Requests next to each other do not cover each other. */
const LANES = 3;
const LANE_PX = 8;

/** The colour of a request, the same everywhere. */
export const hueOf = (request) => request % 6;

export class Track {
  /** `cards()` gives the elements along the line: the front, then the stages. */
  constructor(parent, cards, flow) {
    Object.assign(this, { parent, cards, flow, loopMs: 0, frame: null, shapes: new Map() });
    this.way = svg("path.way");
    this.back = svg("path.back");
    this.stops = svg("g");
    this.label = svg("text");
    this.moving = svg("g");
    this.root = svg(
      "svg.rail",
      { "aria-hidden": "true" },
      this.way,
      this.back,
      this.stops,
      this.label,
      this.moving,
    );
    parent.append(this.root);
    new ResizeObserver(() => this.measure()).observe(parent);
  }

  /** Finds out where the cards are. */
  measure() {
    const origin = this.root.getBoundingClientRect();
    const boxes = this.cards().map((card) => card.getBoundingClientRect());
    if (boxes.length < 2 || origin.width === 0) return;
    this.isUpright = boxes[1].top >= boxes[0].bottom - 1;
    const bottom = Math.max(...boxes.map((box) => box.bottom)) - origin.top;
    this.points = boxes.map((box) =>
      this.isUpright
        ? { x: 36, y: (box.top + box.bottom) / 2 - origin.top }
        : { x: (box.left + box.right) / 2 - origin.left, y: bottom + 24 },
    );
    const first = this.points[0];
    const last = this.points.at(-1);
    const home = this.isUpright ? { x: -21, y: 0 } : { x: 0, y: 32 };
    this.home = home;
    const away = { x: last.x + home.x, y: last.y + home.y };
    const end = { x: first.x + home.x, y: first.y + home.y };
    this.way.setAttribute("d", path(this.points));
    this.back.setAttribute("d", path([last, away, end, first]));
    this.stops.replaceChildren(
      ...this.points.map(({ x, y }, at) =>
        svg("circle.stop", {
          cx: x,
          cy: y,
          r: 4,
          "data-down": IS_OUT.has(this.cards()[at].dataset.state),
        }),
      ),
    );
    mark(this.label, "x", this.isUpright ? 0 : (first.x + last.x) / 2);
    mark(this.label, "y", this.isUpright ? 0 : first.y + 60);
    mark(this.label, "text-anchor", "middle");
    this.draw();
  }

  /** Something has begun to move. */
  wake() {
    if (calm.matches) this.draw();
    else if (this.frame === null) this.next();
  }

  next() {
    this.frame = requestAnimationFrame(() => {
      this.draw();
      if (this.flow.isEmpty) this.frame = null;
      else this.next();
    });
  }

  draw() {
    if (!this.points) return;
    const seen = this.flow.seen(performance.now(), this.loopMs);
    say(
      this.label,
      this.isUpright
        ? ""
        : calm.matches
          ? counted(seen)
          : "windows go out above, tokens come straight back below",
    );
    const shown = calm.matches ? [] : seen;
    const keys = new Set(shown.map((item) => item.key));
    for (const [key, shape] of this.shapes) {
      if (keys.has(key)) continue;
      shape.remove();
      this.shapes.delete(key);
    }
    for (const item of shown) this.place(item);
  }

  place(item) {
    let shape = this.shapes.get(item.key);
    if (!shape) {
      const isChunk = item.kind === "chunk";
      const length = isChunk ? Math.min(10 + item.rows / 8, 34) : Math.min(9 + item.rows * 3, 36);
      const size = this.isUpright ? { width: 9, height: length } : { width: length, height: 9 };
      shape = svg("rect.item", { ...size, rx: isChunk ? 2 : 4.5, "data-hue": hueOf(item.request) });
      if (isChunk) shape.classList.add("chunk");
      this.shapes.set(item.key, shape);
      this.moving.append(shape);
    }
    const lane = ((item.request % LANES) - (LANES - 1) / 2) * LANE_PX;
    const middle = item.back > 0 ? this.homeward(item.back) : along(this.points, item.way);
    shape.classList.toggle("stale", item.stale > 0);
    shape.style.opacity = item.stale > 0 ? 1 - item.stale : 1;
    const width = Number(shape.getAttribute("width"));
    const height = Number(shape.getAttribute("height"));
    const x = middle.x - width / 2 + (this.isUpright ? lane : 0);
    const y = middle.y - height / 2 + (this.isUpright ? 0 : lane);
    shape.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  }

  homeward(share) {
    const shifted = this.points.toReversed().map(({ x, y }) => ({ x: x + this.home.x, y: y + this.home.y }));
    return along([shifted[0], shifted.at(-1)], share);
  }
}

/** In words, for those who want no motion. */
function counted(seen) {
  const out = seen.filter(({ back }) => back === 0);
  const stale = out.filter((item) => item.stale > 0).length;
  return `${out.length - stale} under way${stale > 0 ? `, ${stale} stale` : ""}`;
}

function path(points) {
  return points.map(({ x, y }, at) => `${at === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** The point at a share of the way; every stretch between two points takes the same time. */
function along(points, share) {
  const stretches = points.length - 1;
  const at = Math.min(Math.max(share, 0), 1) * stretches;
  const from = Math.min(Math.floor(at), stretches - 1);
  const { x, y } = points[from];
  const next = points[from + 1];
  return { x: x + (next.x - x) * (at - from), y: y + (next.y - y) * (at - from) };
}
