// Drives the real binary from Node: fronts, stages of other machines, and what they say. Waits are for events and have a
// deadline.

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const BINARY = process.env.PACELINE_BINARY ?? path.join(ROOT, "target/release/paceline");
export const MODELS = path.join(ROOT, "models");
const MODEL = path.join(MODELS, "SmolLM2-135M-Instruct.Q4_1.gguf");
const START_MS = 60_000;
const END_MS = 15_000;

/** A process of the binary, with every line that it says. */
export class Process {
  lines = [];
  waiting = new Set();

  constructor(...args) {
    this.name = args.join(" ");
    this.child = spawn(BINARY, args, { stdio: ["ignore", "pipe", "pipe"] });
    this.ended = once(this.child, "exit");
    for (const stream of [this.child.stdout, this.child.stderr]) this.read(stream);
  }

  read(stream) {
    let rest = "";
    stream.setEncoding("utf8").on("data", (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      this.lines.push(...lines);
      for (const look of this.waiting) look();
    });
  }

  /** The match in a line said or still to be said; only in those after the first `from` ones. */
  said(pattern, from = 0) {
    return new Promise((resolve, reject) => {
      const finish = (act, value) => {
        this.waiting.delete(look);
        clearTimeout(deadline);
        act(value);
      };
      const look = () => {
        const found = this.lines
          .slice(from)
          .map((line) => pattern.exec(line))
          .find(Boolean);
        if (found) finish(resolve, found);
      };
      const why = () =>
        new Error(`\`${this.name}\` did not say ${pattern} but:\n${this.lines.slice(-20).join("\n")}`);
      const deadline = setTimeout(() => finish(reject, why()), START_MS);
      this.waiting.add(look);
      look();
    });
  }

  async stop(signal = "SIGTERM") {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill(signal);
    const force = setTimeout(() => this.child.kill("SIGKILL"), END_MS);
    await this.ended;
    clearTimeout(force);
  }
}

/** A front on a port of the system's choice; `url` is where it answers. */
export async function serve(...args) {
  const front = new Process(
    "serve",
    MODEL,
    "--listen",
    "127.0.0.1:0",
    "--threads",
    "1",
    "--ctx",
    "1024",
    ...args,
  );
  front.url = (await front.said(/is starting on (http:\S+)/))[1];
  return front;
}

const command = (...args) => promisify(execFile)(BINARY, args);

/** Whatever repeats itself is guessed, several windows ahead. */
const GUESSING = ["--speculate", "suffix", "--width", "4", "--depth", "3"];

/** A front with the first stage in its own process and two more on machines of their own: `{ front, stages }`. */
export async function threeMachines(folder) {
  const home = path.join(folder, "front");
  await command("cluster", "new", "--dir", home);
  const stages = [];
  for (const name of ["second", "third"]) stages.push(await machine(folder, home, name));
  const named = stages.flatMap(({ port }) => ["--stage", `127.0.0.1:${port}`]);
  const front = await serve(...named, "--cluster", path.join(home, "node.pem"), ...GUESSING);
  return { front, stages };
}

async function machine(folder, home, name) {
  const own = path.join(folder, name);
  const request = path.join(folder, `${name}.request`);
  await command("cluster", "enroll", "--request", request, "--dir", own);
  await command("cluster", "enroll", request, "--name", name, "--dir", home);
  await command("cluster", "enroll", "--join", `${request}.member`, "--dir", own);
  const made = { port: await freePort(), key: path.join(own, "node.pem"), process: null };
  await startStage(made);
  return made;
}

/** Starts a machine's stage, again if need be. */
export async function startStage(machine) {
  const { port, key } = machine;
  const args = [
    "stage",
    "--cluster",
    key,
    "--listen",
    `127.0.0.1:${port}`,
    "--threads",
    "1",
    "--models",
    MODELS,
  ];
  machine.process = new Process(...args);
  await machine.process.said(/waits for a front on/);
}

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = net.createServer().once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}
