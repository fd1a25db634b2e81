// A small chart of values over time, with the value under the pointer. Knows nothing of what is charted.

import { el, svg } from "./dom.js";
import { seconds } from "./format.js";

const WIDTH = 300;
const HEIGHT = 118;
const LEFT = 34;
const BOTTOM = 16;
const TOP = 8;

/** The next round number above: 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

export class Chart {
  /** `format(value)` writes values; `most` fixes the top of the scale, `named` shows each curve's name. */
  constructor(title, { format, most = null, dots = false, named = false }) {
    Object.assign(this, { title, format, most, dots, named, curves: [], now: 0, span: 1, pointer: null });
    this.value = el("output", {}, "–");
    this.keys = el("p.keys");
    this.picture = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      preserveAspectRatio: "none",
    });
    this.root = el("figure.chart", {}, el("figcaption", {}, title, this.value), this.picture, this.keys);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(([entry]) => {
      this.width = Math.max(entry.contentRect.width, 80);
      this.picture.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
      this.draw();
    }).observe(this.picture);
    this.width = WIDTH;
  }

  /**
   * Shows `curves`, `{ name, hue, points: [{ at, value }] }` with the oldest point first. The milliseconds up to now that
   * are shown are `span`.
   */
  show(curves, now) {
    Object.assign(this, { curves, now });
    this.draw();
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    this.pointer = event === null ? null : Math.min(Math.max(event.clientX - box.left, LEFT), this.width);
    this.draw();
  }

  x(at) {
    return LEFT + (1 - (this.now - at) / this.span) * (this.width - LEFT);
  }

  y(value, most) {
    return TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  }

  draw() {
    const values = this.curves.flatMap(({ points }) => points.map(({ value }) => value));
    const shown = this.most ?? roundUp(Math.max(...values, 1));
    const parts = [0, 0.5, 1].flatMap((share) => this.gridLine(share * shown, shown));
    parts.push(
      this.text(LEFT, HEIGHT - 3, `−${seconds(this.span / 1000)}`, "start"),
      this.text(this.width, HEIGHT - 3, "now", "end"),
    );
    for (const curve of this.curves) parts.push(...this.curve(curve, shown));
    if (this.pointer !== null) {
      parts.push(svg("line.cursor", { x1: this.pointer, x2: this.pointer, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.picture.replaceChildren(...parts);
    this.tell();
  }

  gridLine(value, most) {
    const y = this.y(value, most);
    return [
      svg("line.grid", { x1: LEFT, x2: this.width, y1: y, y2: y }),
      this.text(LEFT - 5, y + 3.5, this.format(value), "end"),
    ];
  }

  text(x, y, words, anchor) {
    return svg("text", { x, y, "text-anchor": anchor }, words);
  }

  curve({ hue, points }, most) {
    if (points.length === 0) return [];
    const places = points.map(({ at, value }) => [
      this.x(at).toFixed(1),
      this.y(Math.min(value, most), most).toFixed(1),
    ]);
    if (this.dots) return places.map(([cx, cy]) => svg("circle.dot", { cx, cy, r: 2.6, "data-hue": hue }));
    const line = places.map(([x, y]) => `${x} ${y}`).join("L");
    const floor = this.y(0, most);
    const parts = [svg("path.curve", { d: `M${line}`, "data-hue": hue })];
    if (this.curves.length === 1) {
      parts.unshift(
        svg("path.area", {
          d: `M${places[0][0]} ${floor}L${line}L${places.at(-1)[0]} ${floor}Z`,
          "data-hue": hue,
        }),
      );
    }
    return parts;
  }

  /** Writes the values now, or under the pointer. */
  tell() {
    const at =
      this.pointer === null
        ? this.now
        : this.now - (1 - (this.pointer - LEFT) / (this.width - LEFT)) * this.span;
    const said = this.curves.map(({ name, hue, points }) => {
      const point = points.findLast((point) => point.at <= at) ?? points[0];
      return { name, hue, words: point ? this.format(point.value) : "–" };
    });
    const isOne = said.length === 1 && !this.named;
    this.value.textContent = isOne ? said[0].words : said.length === 0 ? "–" : "";
    this.keys.replaceChildren(
      ...(isOne ? [] : said).map(({ name, hue, words }) =>
        el("span", {}, el("i.swatch", { "data-hue": hue }), `${name} ${words}`),
      ),
    );
    const summary = said.map(({ name, words }) => `${name} ${words}`).join(", ") || "nothing yet";
    this.picture.setAttribute("aria-label", `${this.title}: ${summary}`);
  }
}
