// OpenAI's Node client against a server that runs already: PACELINE_URL says where, PACELINE_KEY with which key,
// PACELINE_MODEL which model. Answers in the form of a schema go to the file PACELINE_ANSWERS, for tests/e2e/test_clients_node.py,
// which starts this, to validate them.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import test from "node:test";

// The client is installed elsewhere: PACELINE_NODE says where.
const OpenAI = createRequire(`${process.env.PACELINE_NODE}/package.json`)("openai");

const model = process.env.PACELINE_MODEL;
const client = new OpenAI({
  baseURL: `${process.env.PACELINE_URL}/v1`,
  apiKey: process.env.PACELINE_KEY,
  maxRetries: 0,
  timeout: 90_000,
});
const hello = [{ role: "user", content: "Say hello." }];
// The model ends its answer to this by itself, as some of the client's helpers demand.
const capital = "What is the capital of France? Answer in one sentence.";
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
const named = { type: "function", function: { name: "weather" } };

function checkWeather(json) {
  const value = JSON.parse(json);
  assert.deepEqual(Object.keys(value).sort(), ["city", "days"]);
  assert.ok(typeof value.city === "string" && value.days >= 1 && value.days <= 9, json);
}

test("a chat is answered, whole and in pieces", async () => {
  const asked = { model, messages: hello, temperature: 0, max_tokens: 12 };
  const whole = await client.chat.completions.create(asked);
  assert.ok(whole.choices[0].message.content);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  for (const stream_options of [undefined, { include_usage: true }]) {
    const chunks = [];
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true, stream_options })) {
      chunks.push(chunk);
    }
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    assert.equal(text, whole.choices[0].message.content);
    // Usage comes once, at the end and without choices, and only if asked for.
    const told = chunks.filter((chunk) => "usage" in chunk);
    const empty = chunks.filter((chunk) => chunk.choices.length === 0);
    assert.deepEqual(told, empty);
    assert.deepEqual(told, stream_options ? chunks.slice(-1) : []);
    if (stream_options) assert.equal(told[0].usage.completion_tokens, whole.usage.completion_tokens);
  }
});

test("the client's own helper puts a stream together", async () => {
  const stream = client.chat.completions.stream({
    model,
    messages: [{ role: "user", content: capital }],
    temperature: 0,
    max_tokens: 48,
  });
  let text = "";
  stream.on("content", (piece) => (text += piece));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
});

test("a tool is called and its result is read", async () => {
  const messages = [{ role: "user", content: "How will the weather be in Paris?" }];
  const asked = { model, tools, temperature: 0, max_tokens: 64 };
  const first = await client.chat.completions.create({ ...asked, messages, tool_choice: named });
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  const [call] = first.choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  checkWeather(call.function.arguments);
  messages.push(first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "Rain." });
  const second = await client.chat.completions.create({ ...asked, messages, tool_choice: "none" });
  assert.ok(second.choices[0].message.content);

  const stream = client.chat.completions.stream({ ...asked, messages: hello, tool_choice: named });
  const streamed = await stream.finalChatCompletion();
  assert.equal(streamed.choices[0].finish_reason, "tool_calls");
  checkWeather(streamed.choices[0].message.tool_calls[0].function.arguments);
});

test("a function is run by the client's own loop", async () => {
  let asked = 0;
  const runner = client.chat.completions.runTools({
    model,
    messages: hello,
    temperature: 0,
    max_tokens: 48,
    tool_choice: named,
    tools: [
      {
        type: "function",
        function: {
          name: "weather",
          parameters: schema,
          parse: JSON.parse,
          function: ({ city }) => {
            asked += 1;
            return `Rain in ${city}.`;
          },
        },
      },
    ],
  });
  // A tool that was named ends the loop once it has run.
  await runner.done();
  assert.equal(asked, 1);
});

test("texts are embedded", async () => {
  const asked = { model, input: ["A river in Africa", "Bread"] };
  const answer = await client.embeddings.create(asked);
  assert.deepEqual(answer.data.map((entry) => entry.index), [0, 1]);
  const length = (vector) => Math.hypot(...vector);
  for (const { embedding } of answer.data) assert.ok(embedding.length === 576 && Math.abs(length(embedding) - 1) < 1e-3);
  assert.ok(answer.usage.prompt_tokens > 2);
  const cut = await client.embeddings.create({ ...asked, dimensions: 8, encoding_format: "float" });
  assert.ok(cut.data.every(({ embedding }) => embedding.length === 8));
});

test("a form is followed", async () => {
  const answer = await client.chat.completions.create({
    model,
    messages: hello,
    temperature: 1,
    seed: 1,
    max_tokens: 64,
    response_format: { type: "json_schema", json_schema: { name: "weather", strict: true, schema } },
  });
  assert.equal(answer.choices[0].finish_reason, "stop");
  checkWeather(answer.choices[0].message.content);
});

test("every schema is followed", async () => {
  const cases = JSON.parse(readFileSync(new URL("../e2e/schemas.json", import.meta.url), "utf8"));
  const ask = async ({ ask, schema }) => {
    const answer = await client.chat.completions.create({
      model,
      messages: [{ role: "user", content: `${ask} Answer in JSON.` }],
      temperature: 0,
      max_tokens: 200,
      response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
    });
    assert.equal(answer.choices[0].finish_reason, "stop");
    return answer.choices[0].message.content;
  };
  writeFileSync(process.env.PACELINE_ANSWERS, JSON.stringify(await Promise.all(cases.map(ask))));
});

test("three choices have log-probabilities", async () => {
  const answer = await client.chat.completions.create({
    model,
    messages: hello,
    n: 3,
    max_tokens: 4,
    logprobs: true,
    top_logprobs: 2,
  });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
  for (const choice of answer.choices) {
    assert.ok(choice.logprobs.content.length > 0);
    assert.ok(choice.logprobs.content.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
  }
});

test("a response streams its events and is gone on from", async () => {
  const kinds = [];
  const stream = client.responses.stream({ model, input: capital, temperature: 0, max_output_tokens: 48 });
  for await (const event of stream) kinds.push(event.type);
  const first = await stream.finalResponse();
  assert.equal(kinds[0], "response.created");
  assert.ok(kinds.includes("response.output_text.delta") && first.output_text);
  const second = await client.responses.create({
    model,
    input: "And again.",
    previous_response_id: first.id,
    max_output_tokens: 8,
  });
  assert.equal(second.previous_response_id, first.id);
  const items = [];
  for await (const item of client.responses.inputItems.list(second.id, { order: "asc" })) items.push(item.role);
  assert.deepEqual(items, ["user", "assistant", "user"]);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("errors have the client's own types", async () => {
  await assert.rejects(client.chat.completions.create({ model: "gpt-9", messages: hello }), (error) => {
    return error instanceof OpenAI.NotFoundError && error.code === "model_not_found";
  });
  await assert.rejects(client.chat.completions.create({ model, messages: hello, top_p: 7 }), (error) => {
    return error instanceof OpenAI.BadRequestError && error.param === "top_p";
  });
  await assert.rejects(client.withOptions({ apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
});

/** The sequences of clients on the line. */
async function live() {
  const headers = { authorization: `Bearer ${process.env.PACELINE_KEY}` };
  return (await (await fetch(`${process.env.PACELINE_URL}/v1/line`, { headers })).json()).sequences;
}

test("a stream that is left early ends its request", async () => {
  const stream = await client.chat.completions.create({
    model,
    messages: hello,
    stream: true,
    max_tokens: 1500,
    ignore_eos: true,
  });
  let seen = 0;
  for await (const _ of stream) {
    seen += 1;
    if (seen === 3) {
      assert.equal((await live()).length, 1);
      break;
    }
  }
  assert.equal(seen, 3);
  const deadline = performance.now() + 5000;
  while ((await live()).length > 0) assert.ok(performance.now() < deadline, "the sequence lives on");
});

test("twenty at once are answered alike", async () => {
  const asked = { model, messages: hello, temperature: 0, max_tokens: 6 };
  const answers = await Promise.all(Array.from({ length: 20 }, () => client.chat.completions.create(asked)));
  assert.equal(new Set(answers.map((answer) => answer.choices[0].message.content)).size, 1);
});
