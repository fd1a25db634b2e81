// The line, its requests and their speed, as they are shown.

import assert from "node:assert/strict";
import test from "node:test";

import { client, isReady, PHONE, picture, until, visit, world } from "./fixtures.js";
import { serve, startStage } from "./processes.js";

/** What repeats itself is guessed well, so windows run ahead. */
const REPEATING = "one two three four five six seven eight nine ten ".repeat(6);

/** Waits for charts with these titles to show something, as a picture and as a number. */
const charted = (page, titles) =>
  until(
    page,
    (titles) => {
      const charts = [...document.querySelectorAll("#charts .chart")];
      const isSaid = (part) => /[0-9]/.test(part.innerText);
      const isDrawn = (chart) =>
        chart.querySelector(".curve, .dot") !== null &&
        [...chart.querySelectorAll("output, .keys")].some(isSaid);
      const called = (title) => charts.find((chart) => chart.innerText.includes(title));
      return titles.every((title) => isDrawn(called(title)));
    },
    titles,
  );

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

test("a machine that stands by is shown beside the stages, with what it holds", async () => {
  const front = await serve("--stages", "2", "--spares", "1");
  try {
    await visit({ url: front.url }, async (page) => {
      await isReady(page);
      assert.equal(await page.locator(".stage").count(), 2);
      const spare = page.locator('.spare[data-state="spare"]');
      await spare.waitFor();
      assert.equal(await page.locator(".spare").count(), 1);
      assert.match(await spare.innerText(), /standing by[\s\S]*127\.0\.0\.1:\d+ · pid \d+[\s\S]*layers \d+–\d+/);
      await picture(page, "spare");
    });
    await visit({}, async (page) => {
      await isReady(page);
      assert.equal(await page.locator("#spares").isHidden(), true, "a line without spares shows none");
    });
  } finally {
    await front.stop();
  }
});

test("windows move along the line, and requests, figures and charts follow", () =>
  visit({}, async (page, requests) => {
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
    await until(page, () =>
      [...document.querySelectorAll("#live tbody tr td:nth-child(5)")].some((cell) => /[1-9]/.test(cell.textContent)),
    );
    await until(page, () =>
      [...document.querySelectorAll(".stage")].every((card) => card.style.getPropertyValue("--busy") > 0),
    );
    assert.match(await page.locator(".stage").nth(1).innerText(), /busy\s+[\d.]+ %/);
    await until(page, () => /[1-9][\d.]* [kMG]?B\/s/.test(document.querySelectorAll(".link")[1].innerText));
    await charted(page, ["Tokens per second", "Guesses accepted", "Stale windows"]);
    assert.match(await page.locator("#requests-note").innerText(), /2 running/);
    await picture(page, "busy");
    first.stop();
    second.stop();
    await until(page, () => document.querySelectorAll("#ended tbody tr").length >= 2);
    assert.match(await page.locator("#ended tbody tr").first().innerText(), /cancelled/);
    // When the first token came is told of requests that ended by themselves.
    await (await client("Once upon a time", { max_tokens: 3 })).text;
    await charted(page, ["Time to the first token"]);
    assert.equal(await page.locator("#charts .chart").count(), 4);
    assert.match(await page.locator(".chart", { hasText: "Guesses accepted" }).innerText(), /suffix/);
    const asked = requests.filter((request) => !request.startsWith("GET /console/"));
    assert.deepEqual(asked, ["GET /", "GET /v1/line/events"], "all of it comes in one stream of events");
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
    const before = await whole.count();
    await (await client("Once upon a time", { max_tokens: 3 })).text;
    assert.equal(await whole.count(), before, "what happens now is not heard");
    await Promise.all([page.waitForRequest(isStream), see(false)]);
    await whole.nth(before).waitFor();
  }));

test("a killed stage is down on the page within 2 s, with what to do, and up after its start", (context) =>
  visit({}, async (page) => {
    const [, victim] = world.line.stages;
    const card = page.locator(".stage").nth(2);
    // The machine may be busy with other things, so the best time of three counts.
    const took = [];
    for (let round = 1; round <= 3; round += 1) {
      await isReady(page);
      const killed = performance.now();
      const gone = victim.process.stop("SIGKILL");
      try {
        await page.locator('.stage[data-state="down"]').waitFor();
        took.push(Math.round(performance.now() - killed));
        await gone;
        assert.match(await card.innerText(), /down[\s\S]*run paceline stage/);
        await page.locator('#state[data-state="down"]').waitFor();
        assert.match(await page.locator("#notice").innerText(), /Not ready: .*stage 2/);
        if (round === 1) await picture(page, "down");
      } finally {
        await gone;
        await startStage(victim);
      }
    }
    context.diagnostic(`shown ${took.join(", ")} ms after it was killed`);
    assert.ok(Math.min(...took) < 2000, `shown ${took.join(", ")} ms after it was killed`);
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
