// The page's parts that can be tried alone, in the browser that they are for.

import assert from "node:assert/strict";
import test from "node:test";

import { isReady, visit } from "./fixtures.js";

/** What is true, the module, and a function of it that gives what is found and what is expected. */
const PARTS = [];

PARTS.push([
  "events are read whatever pieces they come in",
  "sse.js",
  ({ Parser }) => {
    const text = ": hello\n\nevent: status\ndata: {\ndata: }\n\r\ndata:x\n\ndata: unfinished";
    const found = [];
    for (const size of [1, 2, 3, 7, text.length]) {
      const parser = new Parser();
      const events = [];
      for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
      found.push(JSON.stringify(events));
    }
    const expected = JSON.stringify([
      { name: "status", data: "{\n}" },
      { name: "message", data: "x" },
    ]);
    return [[...new Set(found)], [expected]];
  },
]);

PARTS.push([
  "a contradiction makes the windows behind it stale, and the end those that are left",
  "flow.js",
  ({ Flow }) => {
    const flow = new Flow();
    const at = (at_ms, what, more) => ({ at_ms, request: 1, what, ...more });
    flow.hear(
      [
        at(0, "chunk", { end: 8, rows: 8 }),
        at(1, "progress", { end: 8 }),
        at(2, "window", { window: 0, epoch: 0, rows: 2 }),
        at(3, "window", { window: 1, epoch: 0, rows: 2 }),
        at(4, "window", { window: 2, epoch: 0, rows: 2 }),
        at(5, "verdict", { window: 0, tokens: 1 }),
        at(5, "window", { window: 3, epoch: 1, rows: 1 }),
      ],
      5,
    );
    const seen = flow.seen(700, 0).map(({ key, way, stale }) => [key, way < 1, stale > 0]);
    const first = JSON.stringify([seen, flow.stale]);
    flow.hear([at(300, "over", {})], 300);
    const second = JSON.stringify([
      flow.stale,
      flow.seen(1400, 0).length,
      flow.seen(9000, 0).length,
      flow.isEmpty,
    ]);
    const expected = [
      ["1/to 8", true, false],
      ["1/0", true, false],
      ["1/1", true, true],
      ["1/2", true, true],
      ["1/3", true, false],
    ];
    return [
      [first, second],
      [JSON.stringify([expected, 2]), JSON.stringify([3, 2, 0, true])],
    ];
  },
]);

PARTS.push([
  "rates are of the last seconds, and a front that starts again counts anew",
  "series.js",
  ({ Series }) => {
    const series = new Series();
    const line = (generated, sent, stale) => ({
      tokens: { generated },
      windows: { sent, stale },
      stages: [{ work: { rows: 2 * generated } }],
      sources: {},
    });
    for (let second = 0; second <= 10; second += 1)
      series.hear(line(second * 30, second * 10, second), second * 1000);
    const found = [series.tokensPerSecond(), series.rowsPerSecond(0), series.stale.at(-1).value];
    series.hear(line(0, 0, 0), 11_000);
    return [
      [...found, series.tokensPerSecond(), series.past.length],
      [30, 60, 0.1, 0, 1],
    ];
  },
]);

PARTS.push([
  "lists in lists, quotes and open code are what they look like while they still grow",
  "markdown.js",
  ({ show }) => {
    const box = document.createElement("div");
    const text =
      "Hi _there_ a_b_c\n\n- one\n  - two\n- three\n\n> said **so**\n\n1. x\n\n```js\nlet a = `1`;";
    for (let end = 1; end <= text.length; end += 1) show(box, text.slice(0, end));
    const shape = (node) =>
      node.nodeType === 3 ? node.data : `${node.localName}(${[...node.childNodes].map(shape).join(",")})`;
    const drawn = [...box.children].map(shape);
    drawn[4] = drawn[4].includes("code(let a = `1`;)");
    const expected = [
      "p(Hi ,em(there), a_b_c)",
      "ul(li(one,ul(li(two))),li(three))",
      "blockquote(p(said ,strong(so)))",
      "ol(li(x))",
      true,
    ];
    return [drawn, expected];
  },
]);

test("the page's parts do what they say", (context) =>
  visit({}, async (page) => {
    await isReady(page);
    for (const [truth, module, act] of PARTS) {
      await context.test(truth, async () => {
        const [found, expected] = await page.evaluate(`import("/console/${module}").then(${act})`);
        assert.deepEqual(found, expected);
      });
    }
  }));
