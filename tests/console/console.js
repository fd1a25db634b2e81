// All tests of the console, in one process: they share a browser and a line.

import { after, before } from "node:test";

import { begin, finish } from "./fixtures.js";

before(begin);
after(finish);

await import("./parts.js");
await import("./line.js");
await import("./chat.js");
await import("./access.js");
