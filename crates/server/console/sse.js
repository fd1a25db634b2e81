// Server-sent events from a fetched body, since EventSource cannot send a key.

/** The events of a stream of text: `{ name, data }`, as they come. Comments are left out. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new Parser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    // The stream may have failed already; then there is nothing left to cancel.
    await reader.cancel().catch(() => {});
  }
}

/** Cuts text into events; lines may come in pieces. */
export class Parser {
  rest = "";
  name = "message";
  data = [];

  push(text) {
    const lines = (this.rest + text).split(/\r?\n/);
    this.rest = lines.pop();
    const found = [];
    for (const line of lines) {
      const event = this.line(line);
      if (event) found.push(event);
    }
    return found;
  }

  line(line) {
    if (line === "") {
      const event = this.data.length > 0 ? { name: this.name, data: this.data.join("\n") } : null;
      this.name = "message";
      this.data = [];
      return event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    if (field === "event") this.name = value;
    return null;
  }
}
