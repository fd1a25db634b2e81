// One answer while it comes: from the chunks of a stream to a message with its figures.

import { stream } from "./server.js";

/** An empty answer. */
export function blank() {
  return { role: "assistant", content: "", reasoning: "", calls: [], finish: null, error: null, figures: {} };
}

/** Lets an answer grow; `grown()` is called after every piece. Resolves when it is over, one way or the other. */
export async function receive(answer, body, signal, grown) {
  const began = performance.now();
  try {
    for await (const { data } of stream("/v1/chat/completions", body, signal)) {
      if (data === "[DONE]") break;
      take(answer, JSON.parse(data), performance.now() - began);
      grown();
    }
    answer.error ??= answer.finish === null ? "The answer broke off." : null;
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else answer.error = error.message;
  }
  const { figures } = answer;
  // An answer that was stopped has no figures from the server.
  const since = performance.now() - began - (figures.firstMs ?? 0);
  if (figures.rate === undefined && figures.pieces > 1) figures.rate = (1000 * (figures.pieces - 1)) / since;
  grown();
}

function take(answer, chunk, elapsedMs) {
  if (chunk.error) {
    answer.error = chunk.error.message;
    return;
  }
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { delta } = choice;
  const { figures } = answer;
  if (delta.content || delta.reasoning_content || delta.tool_calls) {
    figures.firstMs ??= elapsedMs;
    figures.pieces = (figures.pieces ?? 0) + 1;
  }
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  for (const piece of delta.tool_calls ?? []) call(answer.calls, piece);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  if (choice.timings ?? chunk.timings) Object.assign(figures, read(choice.timings ?? chunk.timings));
}

function call(calls, { index, id, function: called }) {
  calls[index] ??= { id, name: "", arguments: "" };
  calls[index].name += called?.name ?? "";
  calls[index].arguments += called?.arguments ?? "";
}

function read(timings) {
  return {
    tokens: timings.predicted_n,
    rate: timings.predicted_per_second,
    prompt: timings.prompt_n,
    cached: timings.cache_n,
    drafted: timings.draft_n,
    accepted: timings.draft_n_accepted,
  };
}
