// Rates from counters that only grow, over the last few seconds. The server tells counters; how fast they grow is ours.

/** Rates are of so many milliseconds: long enough to be steady, short enough to be of now. */
const RATE_MS = 2500;
/** Shares need more events than rates to mean anything. */
const SHARE_MS = 10_000;
/** What is kept for the charts. */
export const SPAN_MS = 300_000;
const MOST = 1500;

/** What a status says that grows. */
function counters(line) {
  return {
    generated: line.tokens.generated,
    sent: line.windows.sent,
    stale: line.windows.stale,
    rows: line.stages.map((stage) => stage.work.rows),
    sources: line.sources,
  };
}

export class Series {
  /** Counters of the last while, oldest first. */
  past = [];
  speed = [];
  stale = [];
  firstTokens = [];
  /** Points by source. */
  acceptance = new Map();
  seen = new Set();

  /** Takes a status. */
  hear(line, now) {
    const latest = { at: now, ...counters(line) };
    // A front that was started again counts from zero.
    if (this.past.length > 0 && latest.sent < this.past.at(-1).sent) this.past = [];
    this.past.push(latest);
    while (this.past.length > 2 && this.past[1].at <= now - SHARE_MS) this.past.shift();
    this.keep(this.speed, now, this.tokensPerSecond());
    const far = this.past[0];
    if (latest.sent > far.sent)
      this.keep(this.stale, now, (latest.stale - far.stale) / (latest.sent - far.sent));
    for (const [name, source] of Object.entries(latest.sources)) {
      const before = far.sources[name] ?? { proposed: 0, accepted: 0 };
      if (source.proposed <= before.proposed) continue;
      if (!this.acceptance.has(name)) this.acceptance.set(name, []);
      const share = (source.accepted - before.accepted) / (source.proposed - before.proposed);
      this.keep(this.acceptance.get(name), now, share);
    }
  }

  /** Takes the requests that have ended; each counts once, at the time when it ended. `wall` is the time of day. */
  hearEnded(ended, now, wall) {
    for (const request of ended.toReversed()) {
      const key = `${request.id}/${request.at}`;
      if (this.seen.has(key)) continue;
      this.seen.add(key);
      const age = Math.max(0, wall - request.at * 1000);
      if (request.first_token_ms !== undefined && age < SPAN_MS)
        this.keep(this.firstTokens, now - age, request.first_token_ms);
    }
    if (this.seen.size > MOST) this.seen = new Set(ended.map(({ id, at }) => `${id}/${at}`));
  }

  keep(points, at, value) {
    points.push({ at, value });
    while (points.length > MOST || points[0].at < at - SPAN_MS) points.shift();
  }

  /** The counters at the beginning of the span that rates are of. */
  recent() {
    const now = this.past.at(-1).at;
    return this.past.find(({ at }) => at >= now - RATE_MS) ?? this.past.at(-1);
  }

  rate(of) {
    const latest = this.past.at(-1);
    const before = this.recent();
    return latest && latest.at > before.at ? (1000 * (of(latest) - of(before))) / (latest.at - before.at) : 0;
  }

  tokensPerSecond() {
    return this.rate(({ generated }) => generated);
  }

  /** Rows per second into a stage; a stage that was started again counts from zero. */
  rowsPerSecond(stage) {
    return Math.max(
      0,
      this.rate(({ rows }) => rows[stage] ?? 0),
    );
  }
}
