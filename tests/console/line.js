// The line, its requests and their speed, as they are shown.

import assert from "node:assert/strict";
import test from "node:test";

import { client, isReady, PHONE, picture, until, visit, world } from "./fixtures.js";
import { startStage } from "./processes.js";

/** What repeats itself is guessed well, so windows run ahead. */
const REPEATING = "one two three four five six seven eight nine ten ".repeat(6);

test("the page loads and shows three stages that are ready", () =>
  visit({}, async (page, requests) => {
    await isReady(page);
    const stages = page.locator(".stage");
    assert.equal(await stages.count(), 3);
    for (let at = 0; at < 3; at += 1) {
      assert.equal(await stages.nth(at).getAttribute("data-state"), "ready");
      assert.match(await stages.nth(at).innerText(), /layers\s+\d+–\d+[\s\S]*memory\s+[\d.]+ MB/);
    }
    assert.match(
      await stages.nth(1).innerText(),
      new RegExp(`127.0.0.1:${world.line.stages[0].port} · pid \\d+`),
    );
    assert.match(await page.locator("#model").innerText(), /SmolLM2.*llama.*135 M.*context 1,024/);
    assert.match(await page.locator(".link").nth(1).innerText(), /ms/);
    const asked = requests.filter((request) => !request.startsWith("GET /console/"));
    assert.deepEqual(asked, ["GET /", "GET /v1/line/events"], "and asks for nothing else");
    await picture(page, "idle");
  }));

test("windows move along the line, and requests, figures and charts follow", () =>
  visit({}, async (page) => {
    await isReady(page);
    // A copy is guessed well; chance makes some guesses wrong, and what was sent behind them stale.
    const [first, second] = await Promise.all([
      client(REPEATING, { temperature: 1 }),
      client("Once upon a time"),
    ]);
    await page.locator("#live tbody tr").nth(1).waitFor();
    await page.locator(".rail .item").first().waitFor({ state: "attached" });
    await page.locator(".rail .item.stale").first().waitFor({ state: "attached" });
    const row = page.locator("#live tbody tr", { hasText: "decode" }).first();
    await row.waitFor();
    await until(
      page,
      () => Number.parseFloat(document.querySelector("#live tbody tr td:nth-child(4)").textContent) > 0,
    );
    await until(page, () => Number.parseFloat(document.getElementById("figure-speed").textContent) > 0);
    await until(page, () => document.querySelector("#charts .curve") !== null);
    assert.match(await page.locator("#requests-note").innerText(), /2 running/);
    await picture(page, "busy");
    first.stop();
    second.stop();
    await until(page, () => document.querySelectorAll("#ended tbody tr").length >= 2);
    assert.match(await page.locator("#ended tbody tr").first().innerText(), /cancelled/);
  }));

test("a request is cancelled from the page, and its client hears why", () =>
  visit({}, async (page) => {
    await isReady(page);
    const { text } = await client("Tell me everything");
    await page
      .locator("#live")
      .getByRole("button", { name: /Cancel request/ })
      .click();
    assert.match(await text, /"code":"cancelled"/);
    await page.locator("#live tbody tr").waitFor({ state: "detached" });
    assert.match(await page.locator("#ended tbody tr").first().innerText(), /cancelled/);
  }));

test("a page that nobody sees does not follow the line, and goes on when it is seen", () =>
  visit({}, async (page) => {
    await isReady(page);
    const see = (isHidden) =>
      page.evaluate((isHidden) => {
        Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, isHidden);
    const isStream = (request) => request.url().endsWith("/v1/line/events");
    await Promise.all([page.waitForEvent("requestfailed", isStream), see(true)]);
    assert.equal(await page.locator("#notice").isHidden(), true, "and nothing is wrong");
    const whole = page.locator('#ended [data-phase="length"]');
    await (await client("Once upon a time", { max_tokens: 3 })).text;
    assert.equal(await whole.count(), 0, "what happens now is not heard");
    await Promise.all([page.waitForRequest(isStream), see(false)]);
    await whole.waitFor();
  }));

test("a killed stage is shown as down, with what to do, and as up again after its start", (context) =>
  visit({}, async (page) => {
    await isReady(page);
    const [, victim] = world.line.stages;
    const killed = performance.now();
    await victim.process.stop("SIGKILL");
    const card = page.locator(".stage").nth(2);
    try {
      await page.locator('.stage[data-state="down"]').waitFor();
      context.diagnostic(`shown ${Math.round(performance.now() - killed)} ms after it was killed`);
      assert.match(await card.innerText(), /down[\s\S]*run paceline stage/);
      await page.locator('#state[data-state="down"]').waitFor();
      assert.match(await page.locator("#notice").innerText(), /Not ready: .*stage 2/);
      await picture(page, "down");
    } finally {
      await startStage(victim);
    }
    await isReady(page);
    assert.equal(await card.getAttribute("data-state"), "ready");
    assert.match(await card.innerText(), /It was down at/);
    assert.equal(await page.locator("#notice").isHidden(), true);
  }));

test("on a phone everything fits and nothing scrolls sideways, in the dark too", () =>
  visit({ viewport: PHONE, colorScheme: "dark", hasTouch: true }, async (page) => {
    await isReady(page);
    const { stop } = await client(REPEATING);
    await page.locator(".rail .item").first().waitFor({ state: "attached" });
    await picture(page, "phone-line");
    for (const view of ["line", "chat"]) {
      await page.locator(`#to-${view}`).click();
      const [wide, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.equal(wide, seen, view);
    }
    await picture(page, "phone-chat");
    const [ground, text] = await page.evaluate(() => {
      const { backgroundColor, color } = getComputedStyle(document.body);
      return [backgroundColor, color].map((value) =>
        value
          .match(/\d+/g)
          .map(Number)
          .reduce((sum, part) => sum + part),
      );
    });
    assert.ok(ground < 150 && text > 500, `dark as the system is: ${ground}, ${text}`);
    stop();
  }));

test("who wants no motion gets numbers instead", () =>
  visit({ reducedMotion: "reduce" }, async (page) => {
    await isReady(page);
    const { stop } = await client(REPEATING);
    await until(page, () => /under way/.test(document.querySelector(".rail text").textContent));
    assert.equal(await page.locator(".rail .item").count(), 0);
    stop();
  }));
