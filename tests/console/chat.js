// The chat.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { isReady, picture, until, visit } from "./fixtures.js";

async function say(page, text) {
  await page.locator("#message").fill(text);
  await page.keyboard.press("Enter");
}

const answered = (page, n) =>
  until(
    page,
    (n) => {
      const answers = document.querySelectorAll(".message.assistant");
      return (
        answers.length === n &&
        document.getElementById("stop").hidden &&
        /tokens\/s/.test(answers[n - 1].textContent)
      );
    },
    n,
  );

/** Settings that make short answers which are always the same. */
async function settle(page, tokens) {
  await page.locator("#settings-open").click();
  await page.getByLabel("Temperature").fill("0");
  await page.getByLabel("Tokens at most").fill(String(tokens));
  await page.getByLabel("System prompt").fill("You are brief.");
  await page.locator("#settings-open").click();
}

test("an answer streams, with its figures, and is kept in this browser only", () =>
  visit({ view: "#chat" }, async (page, requests) => {
    await isReady(page);
    await settle(page, 40);
    const lengths = page.evaluate(
      () =>
        new Promise((resolve) => {
          const seen = new Set();
          new MutationObserver(() => {
            const answer = document.querySelector(".message.assistant .markdown");
            if (answer) seen.add(answer.textContent.length);
            if (answer && /tokens\/s/.test(document.querySelector(".foot")?.textContent)) resolve(seen.size);
          }).observe(document.getElementById("thread"), {
            subtree: true,
            childList: true,
            characterData: true,
          });
        }),
    );
    await say(page, "Name three rivers.");
    await answered(page, 1);
    assert.ok((await lengths) > 3, "it comes piece by piece");
    const foot = await page.locator(".foot").innerText();
    assert.match(foot, /tokens\/s[\s\S]*first token[\s\S]*tokens/);
    await say(page, "And three lakes?");
    await answered(page, 2);
    await picture(page, "chat");
    const before = await page.locator("#thread").innerText();
    await page.reload();
    await isReady(page);
    assert.equal(await page.locator("#thread").innerText(), before);
    assert.equal(await page.locator("#talks li").count(), 1);
    const posts = requests.filter((request) => request.startsWith("POST"));
    assert.deepEqual(posts, Array(2).fill("POST /v1/chat/completions"));
  }));

test("an answer can be stopped, made again, and asked for in other words", () =>
  visit({ view: "#chat" }, async (page) => {
    await isReady(page);
    await settle(page, 400);
    await say(page, "Count from one to one thousand, in words.");
    await until(page, () => document.querySelector(".message.assistant .markdown")?.textContent.length > 10);
    await page.locator("#stop").click();
    await until(page, () => /stopped/.test(document.querySelector(".foot").textContent));
    await page.locator("#settings-open").click();
    await page.getByLabel("Tokens at most").fill("12");
    await page.locator("#settings-open").click();
    await page.getByRole("button", { name: "Regenerate" }).click();
    await answered(page, 1);
    const first = await page.locator(".message.assistant .markdown").innerText();
    await page.getByRole("button", { name: "Edit" }).click();
    await page.getByLabel("Edit the message").fill("What is the capital of France?");
    await page.getByRole("button", { name: "Send again" }).click();
    await until(
      page,
      (first) => {
        const answer = document.querySelector(".message.assistant .markdown")?.textContent ?? "";
        return document.getElementById("stop").hidden && answer !== "" && answer !== first;
      },
      first,
    );
    assert.equal(await page.locator(".message").count(), 2);
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.locator("#talks-export").click(),
    ]);
    const kept = JSON.parse(readFileSync(await download.path(), "utf8"));
    assert.equal(kept.conversations[0].messages[0].content, "What is the capital of France?");
    page.once("dialog", (dialog) => dialog.accept());
    await page.locator("#talks-delete").click();
    assert.equal(await page.locator("#talks li").count(), 0);
    assert.equal(await page.evaluate(() => localStorage.getItem("paceline.conversations")), "[]");
  }));

test("a conversation that is deleted while its answer comes stays deleted", () =>
  visit({ view: "#chat" }, async (page) => {
    await isReady(page);
    await settle(page, 400);
    page.on("dialog", (dialog) => dialog.accept());
    for (const way of ["#talks li button >> nth=1", "#talks-delete"]) {
      await say(page, "Count from one to one thousand, in words.");
      await until(page, () => document.querySelector(".message.assistant .markdown")?.textContent.length > 10);
      await page.locator(way).click();
      await until(page, () => document.getElementById("stop").hidden);
      assert.equal(await page.locator("#talks li").count(), 0, way);
      assert.equal(await page.evaluate(() => localStorage.getItem("paceline.conversations")), "[]", way);
    }
  }));

test("two tabs keep and delete conversations beside each other", () =>
  visit({ view: "#chat" }, async (page) => {
    await isReady(page);
    await settle(page, 4);
    const other = await page.context().newPage();
    await other.goto(page.url());
    const titles = () =>
      page.evaluate(() => JSON.parse(localStorage.getItem("paceline.conversations")).map(({ title }) => title));
    await say(page, "First");
    await answered(page, 1);
    await say(other, "Second");
    await answered(other, 1);
    assert.deepEqual(await titles(), ["Second", "First"]);
    await page.locator("#talks li button").nth(1).click();
    assert.deepEqual(await titles(), ["Second"]);
  }));

/** A stream with reasoning, markdown and a call, as a larger model would send it. */
function canned() {
  const chunk = (delta, finish_reason = null, more = {}) => ({
    choices: [{ index: 0, delta, finish_reason, ...more }],
  });
  const text =
    "## Rivers\n\nTwo **long** ones, see [the map](javascript:alert(1)) and <img src=x onerror=alert(1)>:\n\n" +
    "1. Nile\n2. Amazon\n\n```rust\nfn main() {}\n```\n\n| river | km |\n|---|---|\n| Nile | 6650 |\n";
  const called = (part) => ({ tool_calls: [{ index: 0, ...part }] });
  const timings = {
    predicted_n: 64,
    predicted_per_second: 32.5,
    prompt_n: 10,
    cache_n: 30,
    draft_n: 40,
    draft_n_accepted: 30,
  };
  return [
    chunk({ role: "assistant" }),
    chunk({ reasoning_content: "They ask for rivers." }),
    ...text.match(/[\s\S]{1,7}/g).map((content) => chunk({ content })),
    chunk(called({ id: "call_1", type: "function", function: { name: "length_of", arguments: "" } })),
    chunk(called({ function: { arguments: '{"river": "Nile"}' } })),
    chunk({}, "tool_calls", { timings }),
  ];
}

test("markdown, code, reasoning and calls are shown, and nothing that a model writes becomes markup", () =>
  visit({ view: "#chat", permissions: ["clipboard-read", "clipboard-write"] }, async (page) => {
    await isReady(page);
    await settle(page, 40);
    const asked = [];
    await page.route("**/v1/chat/completions", (route) => {
      asked.push(route.request().postDataJSON());
      const lines = [...canned().map((chunk) => JSON.stringify(chunk)), "[DONE]"].map(
        (data) => `data: ${data}\n\n`,
      );
      return route.fulfill({ contentType: "text/event-stream", body: lines.join("") });
    });
    await say(page, "Rivers?");
    await answered(page, 1);
    const answer = page.locator(".message.assistant");
    assert.equal(await answer.locator("img, script, a").count(), 0);
    assert.match(await answer.locator(".markdown").innerText(), /<img src=x onerror=alert\(1\)>/);
    assert.equal(await answer.locator("h4").innerText(), "Rivers");
    assert.equal(await answer.locator("strong").innerText(), "long");
    assert.equal(await answer.locator("ol > li").count(), 2);
    assert.equal(await answer.locator("tbody td").nth(1).innerText(), "6650");
    await answer.getByRole("button", { name: "Copy the code" }).click();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "fn main() {}");
    const folded = answer.locator("details");
    assert.deepEqual(await folded.evaluateAll((all) => all.map((one) => one.open)), [false, false]);
    assert.deepEqual(await folded.locator("summary").allInnerTexts(), ["Reasoning", "Calls length_of"]);
    assert.match(
      await page.locator(".foot").innerText(),
      /32.5 tokens\/s[\s\S]*64 tokens[\s\S]*30 of 40 prompt tokens cached[\s\S]*75 % of 40 guesses/,
    );
    await picture(page, "answer");
    await page.getByLabel("Result of length_of").fill("6650 km");
    await page.getByRole("button", { name: "Send the result" }).click();
    await answered(page, 2);
    assert.deepEqual([asked[0].temperature, asked[0].max_tokens, asked[0].stream], [0, 40, true]);
    const [system, user, assistant, tool] = asked[1].messages;
    assert.deepEqual(system, { role: "system", content: "You are brief." });
    assert.deepEqual([user.role, assistant.tool_calls[0].function.name], ["user", "length_of"]);
    assert.deepEqual(tool, { role: "tool", content: "6650 km", tool_call_id: "call_1" });
  }));

test("what goes wrong is said where the answer would be", () =>
  visit({ view: "#chat", allowed: [/ 400 /] }, async (page) => {
    await isReady(page);
    await page.locator("#settings-open").click();
    await page.getByLabel("Stop at").fill("x".repeat(300));
    await say(page, "Hello");
    const error = page.locator(".foot .error");
    await error.waitFor();
    assert.match(await error.innerText(), /stop/);
  }));
