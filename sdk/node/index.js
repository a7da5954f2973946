"use strict";
// Start llama-appliance as a part of this application: one function gives the address, the key, and a way to stop it.
// The program listens on a free port of 127.0.0.1 and wants a key that is made for this start. It ends with this
// process, however that ends.

const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");
const { existsSync, readFileSync, rmSync, statSync } = require("node:fs");
const { tmpdir } = require("node:os");
const { join, resolve } = require("node:path");
const { createInterface } = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");

const PROGRAM = process.platform === "win32" ? "llama-appliance.exe" : "llama-appliance";
const KEY_VARIABLE = "LLAMA_APPLIANCE_EMBED_KEY";
const LAST_LINES = 20;
const LOOK_EVERY = 20;
// Milliseconds from the request to stop until the kill: the program's own limit is 15 s, with its default --grace of 10.
const STOP_TIME = 20_000;

/** The program could not be started, or did not become ready. The text has its last lines. */
class StartError extends Error {
  name = "StartError";
}

async function start(folderOrProgram, { home, options = [], env = process.env, timeout = 60_000, onLog } = {}) {
  const isFolder = statSync(folderOrProgram, { throwIfNoEntry: false })?.isDirectory();
  const program = isFolder ? resolve(folderOrProgram, PROGRAM) : folderOrProgram;
  const key = randomBytes(32).toString("base64url");
  const ready = join(tmpdir(), `llama-appliance-${randomBytes(16).toString("hex")}.json`);
  const words = ["serve", "--port", "0", "--no-stores", "--ready-file", ready];
  words.push("--parent-pid", String(process.pid), "--api-key-env", KEY_VARIABLE);
  if (home !== undefined) words.push("--home", home);
  const child = spawn(program, [...words, ...options], {
    env: { ...env, [KEY_VARIABLE]: key },
    stdio: ["ignore", "ignore", "pipe"],
    windowsHide: true,
  });

  const lines = [];
  createInterface({ input: child.stderr }).on("line", (line) => {
    lines.push(line);
    if (lines.length > LAST_LINES) lines.shift();
    onLog?.(line);
  });
  let failure; // why the system did not start it
  let ended = false;
  const end = new Promise((done) => {
    child.once("error", (cause) => {
      failure = cause;
      done(null);
    });
    child.once("close", done); // after the last line; the status, or null for a signal
  }).finally(() => {
    ended = true;
    rmSync(ready, { force: true }); // a program that was killed leaves it
  });
  const stop = async (patience = STOP_TIME) => {
    child.kill("SIGTERM"); // on Windows, the program and every engine with it end at once
    const late = setTimeout(() => child.kill("SIGKILL"), patience);
    const status = await end;
    clearTimeout(late);
    return status;
  };

  const deadline = Date.now() + timeout;
  while (!existsSync(ready)) {
    if (failure) {
      const advice = "give the folder llama-appliance, or the program in it";
      throw new StartError(`${program} cannot be started: ${failure.message}; ${advice}`, { cause: failure });
    }
    if (ended) {
      const status = child.exitCode ?? child.signalCode;
      throw new StartError([`llama-appliance ended with status ${status} before it was ready:`, ...lines].join("\n"));
    }
    if (Date.now() > deadline) {
      await stop();
      const told = `llama-appliance was not ready after ${timeout} ms; give a longer timeout. It said:`;
      throw new StartError([told, ...lines].join("\n"));
    }
    await sleep(LOOK_EVERY);
  }
  return { url: JSON.parse(readFileSync(ready, "utf8")).url, key, stop };
}

module.exports = { start, StartError };
