// Talking to the server: with the key if there is one, and asking for it if there must be one.

import { askKey, storedKey } from "./key.js";
import { events } from "./sse.js";

/** What the server said instead of an answer. */
export class ServerError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

/** Fetches; a 401 asks for the key and tries again. Throws a ServerError for any other failure. */
export async function ask(path, options = {}) {
  for (;;) {
    const key = storedKey();
    const headers = { ...options.headers };
    if (options.body) headers["content-type"] = "application/json";
    if (key) headers.authorization = `Bearer ${key}`;
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    if (answer.ok) return answer;
    if (answer.status === 401) {
      await askKey(key);
      continue;
    }
    const body = await answer.json().catch(() => null);
    throw new ServerError(answer.status, body?.error);
  }
}

/** Posts JSON and gives the events of the answer's stream. */
export async function* stream(path, body, signal) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  yield* events(answer.body);
}

export const cancelRequest = (id) => ask(`/v1/requests/${id}/cancel`, { method: "POST" });

const PAUSES_MS = [250, 500, 1000, 2000, 5000];

/**
 * Follows the line for ever, except while nobody sees the page: a browser has few connections to a server for all its
 * tabs. `heard(name, value)` gets each event; `lost(reason)` says that the connection is gone.
 */
export async function follow(heard, lost) {
  let failures = 0;
  let unseen = new AbortController();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) unseen.abort();
  });
  for (;;) {
    await isSeen();
    unseen = new AbortController();
    try {
      const answer = await ask("/v1/line/events", { signal: unseen.signal });
      for await (const { name, data } of events(answer.body)) {
        failures = 0;
        heard(name, JSON.parse(data));
      }
      lost("The server has ended the connection.");
    } catch (error) {
      if (unseen.signal.aborted) continue;
      lost(error instanceof ServerError ? error.message : "The server does not answer.");
    }
    const pause = PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)];
    failures += 1;
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** Resolves once the page can be seen. */
function isSeen() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}
