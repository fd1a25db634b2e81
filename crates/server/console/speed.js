// How fast the line is, over the last minutes.

import { Chart } from "./chart.js";
import { byId } from "./dom.js";
import { millis, number, percent } from "./format.js";
import { SPAN_MS } from "./series.js";

/** A page that was just opened has little to show. */
const SHORTEST_MS = 60_000;

export class SpeedView {
  constructor(series) {
    this.series = series;
    this.charts = {
      speed: new Chart("Tokens per second", { format: number }),
      first: new Chart("Time to the first token", { format: millis, dots: true }),
      accepted: new Chart("Guesses accepted", { format: percent, most: 1, named: true }),
      stale: new Chart("Stale windows", { format: percent, most: 1 }),
    };
    byId("charts").append(...Object.values(this.charts).map((chart) => chart.root));
  }

  draw(now) {
    const { speed, firstTokens, acceptance, stale } = this.series;
    const first = Math.min(speed[0]?.at ?? now, firstTokens[0]?.at ?? now);
    for (const chart of Object.values(this.charts))
      chart.span = Math.min(Math.max(now - first, SHORTEST_MS), SPAN_MS);
    const one = (name, hue, points) => (points.length > 0 ? [{ name, hue, points }] : []);
    this.charts.speed.show(one("tokens per second", 0, speed), now);
    this.charts.first.show(one("first token", 1, firstTokens), now);
    const sources = [...acceptance].map(([name, points], at) => ({ name, hue: at % 6, points }));
    this.charts.accepted.show(sources, now);
    this.charts.stale.show(one("stale", 3, stale), now);
  }
}
