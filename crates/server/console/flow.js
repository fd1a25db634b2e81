// What is on its way along the line, from the movements that the server tells. Knows times and shares of the way, not
// pixels. Everything is shown a little later than it happened, so that what comes in batches still moves evenly.

/** Milliseconds between what happened and what is shown: more than the server waits between two batches. */
const DELAY_MS = 400;
/** No eye follows what takes less: a shorter way is stretched to this. */
const SHORTEST_MS = 700;
const BACK_MS = 500;
const FADE_MS = 900;
/** More than this cannot be told apart on a screen. */
const MOST = 90;

export class Flow {
  items = new Map();
  /** From the server's clock to the page's. */
  offset = Infinity;
  stale = 0;

  /** Takes a batch of movements, in order. */
  hear(movements, now) {
    const last = movements.at(-1);
    if (!last) return;
    // The fastest batch is nearest to the truth; the two clocks may drift apart slowly.
    this.offset = Math.min(this.offset + 2, now - last.at_ms);
    for (const movement of movements) this.move(movement, movement.at_ms + this.offset + DELAY_MS);
    for (const key of this.items.keys()) {
      if (this.items.size <= MOST) break;
      this.items.delete(key);
    }
  }

  move(movement, at) {
    const { request, what } = movement;
    const add = (key, more) =>
      this.items.set(`${request}/${key}`, { request, kind: what, sentAt: at, ...more });
    if (what === "window") {
      this.abandon(request, at, (item) => item.kind === "window" && item.epoch < movement.epoch);
      add(movement.window, { rows: movement.rows, epoch: movement.epoch });
    } else if (what === "chunk") {
      add(`to ${movement.end}`, { rows: movement.rows, end: movement.end });
    } else if (what === "verdict") {
      const item = this.items.get(`${request}/${movement.window}`);
      if (item) Object.assign(item, { answeredAt: at, tokens: movement.tokens });
    } else if (what === "progress") {
      const passed = (item) => item.request === request && item.kind === "chunk" && item.end <= movement.end;
      for (const item of this.items.values()) if (passed(item)) item.answeredAt ??= at;
    } else if (what === "over") {
      this.abandon(request, at, () => true);
    }
  }

  /** Nobody waits any more for these of the request's items. */
  abandon(request, at, which) {
    for (const item of this.items.values()) {
      if (item.request !== request || item.answeredAt || item.staleAt || !which(item)) continue;
      item.staleAt = at;
      this.stale += 1;
    }
  }

  /** The line is gone, and all that was on it. */
  clear(now) {
    for (const item of this.items.values()) if (!item.answeredAt) item.staleAt ??= now;
  }

  /**
   * What is to be seen now: `{ key, request, kind, rows, way, back, stale }` with `way` and `back` as shares of the way
   * out and home, and `stale` from 0, just now, to 1, gone. Forgets what has come home or faded.
   */
  seen(now, loopMs) {
    const seen = [];
    for (const [key, item] of this.items) {
      const place = placed(item, now, Math.max(SHORTEST_MS, loopMs || 0));
      if (place === null) this.items.delete(key);
      else if (now >= item.sentAt)
        seen.push({ key, request: item.request, kind: item.kind, rows: item.rows, ...place });
    }
    return seen;
  }

  get isEmpty() {
    return this.items.size === 0;
  }
}

function placed(item, now, expectedMs) {
  const age = now - item.sentAt;
  if (item.staleAt && now >= item.staleAt) {
    const stale = (now - item.staleAt) / FADE_MS;
    return stale >= 1 ? null : { way: Math.min(age / expectedMs, 0.97), back: 0, stale };
  }
  if (!item.answeredAt) return { way: Math.min(age / expectedMs, 0.97), back: 0, stale: 0 };
  const outMs = Math.max(item.answeredAt - item.sentAt, SHORTEST_MS);
  if (age < outMs) return { way: age / outMs, back: 0, stale: 0 };
  const back = (age - outMs) / BACK_MS;
  // A chunk brings nothing home.
  return back >= 1 || item.kind === "chunk" ? null : { way: 1, back, stale: 0 };
}
