// Writes one line per test, what went wrong, and at the end the line that `./run test` counts.

import { inspect } from "node:util";

export default async function* report(events) {
  const ended = { passed: 0, failed: 0 };
  for await (const { type, data } of events) {
    if (type === "test:stdout" || type === "test:stderr") yield data.message;
    // Those of the whole run have no nesting of their own, and say what is counted here.
    if (type === "test:diagnostic" && data.file?.endsWith(".js")) yield `     ${data.message}\n`;
    if (type !== "test:pass" && type !== "test:fail") continue;
    // A test that was skipped is one that did not pass.
    const isGood = type === "test:pass" && data.skip === undefined && data.todo === undefined;
    ended[isGood ? "passed" : "failed"] += 1;
    yield `${isGood ? "ok  " : "FAIL"} ${data.name} (${(data.details.duration_ms / 1000).toFixed(1)} s)\n`;
    if (data.details.error) yield `${inspect(data.details.error.cause ?? data.details.error)}\n`;
  }
  yield `${ended.passed} passed, ${ended.failed} failed\n`;
}
