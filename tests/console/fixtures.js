// What the tests share: a browser, a line of three machines, and pages that are watched for what they must not do.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";

import { ROOT, threeMachines } from "./processes.js";

const packages = path.join(
  process.env.PACELINE_NODE ?? path.dirname(new URL(import.meta.url).pathname),
  "package.json",
);
const { chromium } = createRequire(packages)("playwright-core");

/** Far beyond need, on a machine that is busy with other things. */
export const PATIENCE_MS = 30_000;
export const DESK = { width: 1280, height: 860 };
export const PHONE = { width: 390, height: 844 };

export const pictures = path.join(ROOT, "target/console");

export const world = { folder: null, browser: null, line: null };

export async function begin() {
  world.folder = mkdtempSync(path.join(os.tmpdir(), "paceline-console-"));
  mkdirSync(pictures, { recursive: true });
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  // Root may not use Chromium's own sandbox; it sees nothing here but this page.
  // Containers often have little shared memory.
  const args = ["--disable-dev-shm-usage", ...(process.getuid() === 0 ? ["--no-sandbox"] : [])];
  [world.browser, world.line] = await Promise.all([
    chromium.launch({ executablePath, args }),
    threeMachines(world.folder),
  ]);
  await world.line.front.said(/^Ready:/);
}

export async function finish() {
  await world.browser?.close();
  const { front, stages } = world.line ?? { stages: [] };
  await Promise.all([front, ...stages.map((stage) => stage.process)].map((process) => process?.stop()));
  rmSync(world.folder, { recursive: true });
}

/** Opens the page as somebody who was never here, does something there, and looks whether it behaved. */
export async function visit(options, act) {
  const { url = world.line.front.url, view = "", allowed = [], ...context } = options;
  const visitor = await world.browser.newContext({ viewport: DESK, ...context });
  visitor.setDefaultTimeout(PATIENCE_MS);
  const page = await visitor.newPage();
  const problems = [];
  const requests = [];
  page.on("console", (message) => {
    const text = `${message.type()}: ${message.text()}`;
    const isProblem = ["error", "warning"].includes(message.type());
    if (isProblem && !allowed.some((pattern) => pattern.test(text))) problems.push(text);
  });
  page.on("pageerror", (error) => problems.push(error.stack));
  page.on("request", (request) => {
    requests.push(`${request.method()} ${new URL(request.url()).pathname}`);
    if (!request.url().startsWith(`${url}/`)) problems.push(`asks ${request.url()}`);
  });
  if (process.env.PACELINE_CONSOLE) await visitor.route(/\/$|\/console\//, fromFolder);
  try {
    await page.goto(`${url}/${view}`);
    await act(page, requests);
    assert.deepEqual(problems, []);
  } catch (error) {
    await page.screenshot({ path: path.join(pictures, "failed.png") }).catch(() => {});
    const { front, stages } = world.line;
    for (const { name, lines } of [front, ...stages.map((stage) => stage.process)]) {
      console.log([`output of ${name}`, ...lines.slice(-12)].join("\n  "));
    }
    throw error;
  } finally {
    await visitor.close();
  }
}

/** Serves the page's files from a folder, with the headers of the binary: to try changes without a build. */
async function fromFolder(route) {
  const name = path.basename(new URL(route.request().url()).pathname) || "index.html";
  const response = await route.fetch();
  await route.fulfill({ response, body: readFileSync(path.join(process.env.PACELINE_CONSOLE, name)) });
}

export const isReady = (page) => page.locator('#state[data-state="ready"]').waitFor();

export const picture = (page, name) => page.screenshot({ path: path.join(pictures, `${name}.png`) });

/** A client that reads a long answer, until it ends or is told to stop. */
export async function client(prompt, more = {}) {
  const stop = new AbortController();
  const body = { prompt, max_tokens: 600, ignore_eos: true, temperature: 0, stream: true, ...more };
  const answer = await fetch(`${world.line.front.url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: stop.signal,
  });
  assert.equal(answer.status, 200);
  return { text: answer.text().catch(() => "left"), stop: () => stop.abort() };
}

/** Waits for something to be true in the page. */
export const until = (page, condition, argument) =>
  page.waitForFunction(condition, argument, { timeout: PATIENCE_MS });
