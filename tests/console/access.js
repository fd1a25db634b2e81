// Who may use the page, and how: the keyboard alone, light and dark, and keys.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import path from "node:path";
import test from "node:test";

import { client, isReady, picture, until, visit, world } from "./fixtures.js";
import { serve } from "./processes.js";

/** Where the focus is; fails if it cannot be seen there. */
const focused = (page) =>
  page.evaluate(() => {
    const { activeElement: at } = document;
    const { outlineStyle, outlineWidth } = getComputedStyle(at);
    const isSeen = at === document.body || (outlineStyle !== "none" && Number.parseFloat(outlineWidth) >= 1);
    return { name: at.id || at.textContent.trim() || at.tagName, isSeen };
  });

async function tabTo(page, name) {
  const passed = [];
  for (let step = 0; step < 40; step += 1) {
    await page.keyboard.press("Tab");
    const at = await focused(page);
    assert.ok(at.isSeen, `the focus on ${at.name} cannot be seen`);
    if (at.name === name) return passed;
    passed.push(at.name);
  }
  throw new Error(`Tab does not lead to ${name} but to ${passed}`);
}

test("everything can be done with the keyboard alone", () =>
  visit({}, async (page) => {
    await isReady(page);
    assert.deepEqual(await tabTo(page, "to-chat"), ["Skip to the content", "Paceline", "to-line"]);
    await page.keyboard.press("Enter");
    await page.locator("#view-chat").waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("?");
    await page.locator("#help").waitFor();
    await page.keyboard.press("Escape");
    await page.locator("#help").waitFor({ state: "hidden" });
    await page.keyboard.press("/");
    await page.keyboard.type("Write a long story");
    await page.keyboard.press("Enter");
    await until(page, () => document.querySelector(".message.assistant .markdown")?.textContent.length > 5);
    await page.keyboard.press("Escape");
    await until(page, () => /stopped/.test(document.querySelector(".foot").textContent));
    await page.keyboard.press("Escape");
    await page.keyboard.press("n");
    assert.equal(await page.locator("#talk-title").innerText(), "New conversation");
    assert.equal((await focused(page)).name, "message");
    await page.keyboard.press("Escape");
    await page.keyboard.press("1");
    await page.locator("#view-line").waitFor();
    // The answer that was stopped leaves the line first, so that there is one request to be cancelled.
    await page.locator("#live tbody tr").waitFor({ state: "detached" });
    const { text } = await client("Once upon a time");
    await page.locator("#live button").waitFor();
    await tabTo(page, "Cancel");
    await page.keyboard.press("Enter");
    assert.match(await text, /"code":"cancelled"/);
  }));

test("colours are the system's until somebody chooses", () =>
  visit({ colorScheme: "dark" }, async (page) => {
    await isReady(page);
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await ground();
    await page.keyboard.press("t");
    const light = await ground();
    assert.notEqual(light, dark);
    await page.reload();
    assert.equal(await ground(), light, "the choice is kept");
    await page.keyboard.press("t");
    assert.equal(await ground(), dark);
    await picture(page, "dark");
  }));

test("a server with keys is asked for one, and it is kept for the tab only", async () => {
  const keys = path.join(world.folder, "keys");
  writeFileSync(keys, "sk-right\n");
  const front = await serve("--api-key-file", keys);
  try {
    await visit({ url: front.url, allowed: [/ 401 /] }, async (page) => {
      const dialog = page.locator("#key");
      await dialog.waitFor();
      assert.equal((await focused(page)).name, "key-value");
      await picture(page, "key");
      const value = page.locator("#key-value");
      await value.fill("“sk-right”");
      await page.keyboard.press("Enter");
      assert.match(await value.evaluate((input) => input.validationMessage), /only letters, digits/);
      assert.equal(await page.evaluate(() => sessionStorage.length), 0);
      await value.fill("");
      await page.keyboard.type("sk-wrong");
      await page.keyboard.press("Enter");
      await page.getByText("does not know this key").waitFor();
      await page.keyboard.type("sk-right");
      await page.keyboard.press("Enter");
      await isReady(page);
      assert.equal(await dialog.isVisible(), false);
      assert.deepEqual(await page.evaluate(() => [localStorage.length, document.cookie]), [0, ""]);
      await page.reload();
      await isReady(page);
      await page.keyboard.press("2");
      await page.locator("#message").fill("Hello");
      await page.keyboard.press("Enter");
      await until(page, () => document.querySelector(".message.assistant .markdown")?.textContent.length > 2);
    });
  } finally {
    await front.stop();
  }
});
