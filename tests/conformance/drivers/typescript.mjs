// Drive @maxam/client for `maxam-conformance`. Needs the built package: `node build.mjs` in maxam/client/typescript.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Client } from "../../../maxam/client/typescript/dist/index.js";
import { tls } from "../../../maxam/client/typescript/dist/node.js";

const report = (saw, rest) => process.stdout.write(`${JSON.stringify({ saw, ...rest })}\n`);
const encode = (body) => Buffer.from(body).toString("base64");

let client;
const waiting = new Map(); // of held values, by subscription
const tickets = [];

function connect({ url, ca, certificate, key, client_id: clientId, host }) {
  const options = { url, clientId, host };
  if (url.startsWith("wss:")) {
    options.ticket = () => {
      report("ticket-wanted");
      return new Promise((resolve) => tickets.push(resolve));
    };
  } else {
    options.transport = tls(() => ({ ca: readFileSync(ca), cert: readFileSync(certificate), key: readFileSync(key) }));
  }
  client = new Client(options);
  client.on("state", (state) => {
    if (state.status === "connected" || state.status === "closed") report(state.status, { code: state.error?.code });
  });
  client.open().catch(() => undefined);
}

function subscribe({ subscription, destination, since, held, hold }) {
  const entry = ([topic, body]) => [topic, { topic, value: Buffer.from(body, "base64"), revision: 0, headers: {} }];
  const map = client.values(destination, { format: "avro", since, entries: Object.entries(held ?? {}).map(entry) });
  map.on("update", async (changes) => {
    for (const { topic, entry: now, kind } of changes) {
      const about = { subscription, destination: topic };
      if (kind === "delete" || kind === "left") report("deleted", about);
      else if (kind === "value") report("value", { ...about, body: encode(now.value), headers: now.headers });
      if (hold) await new Promise((resolve) => waiting.set(subscription, resolve));
    }
  });
  map.on("sync", () => report("synced", { subscription }));
  map.on("position", (position) => report("position", { subscription, position }));
  map.on("state", ({ status, error }) => {
    if (status === "closed") report("refused", { subscription, code: error?.code });
  });
}

async function send({ id, destination, body, headers }) {
  try {
    await client.send(destination, Buffer.from(body, "base64"), { headers });
    report("accepted", { id });
  } catch (error) {
    if (error.code === "outcome-unknown") report("unknown", { id });
    else report("rejected", { id, result: error.code, temporary: error.temporary });
  }
}

const actions = {
  connect,
  subscribe,
  send,
  done: ({ subscription }) => waiting.get(subscription)?.(),
  ticket: ({ ticket }) => tickets.shift()(ticket),
};

createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    actions[command.do](command);
  })
  .on("close", () => process.exit());
report("ready", { claims: ["publisher", "subscriber", "resumer", "map"], except: ["sends-again"] });
