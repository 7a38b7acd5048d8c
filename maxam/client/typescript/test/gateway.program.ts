/**
 * A live map over TLS against a real gateway: `node gateway.program.mjs PORT CA CERTIFICATE KEY GLOB FORMAT`.
 *
 * Each line of standard input asks for the state. The answer is one line of JSON. The end of the input ends the program.
 */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Client } from "../src/index.ts";
import { tls } from "../src/node.ts";

const [port, ca, cert, key, glob, format] = process.argv.slice(2) as [string, string, string, string, string, string];
const client = new Client({
  url: `stomp+tls://127.0.0.1:${port}`,
  transport: tls(() => ({ ca: readFileSync(ca), cert: readFileSync(cert), key: readFileSync(key) })),
  pause: { minMs: 10, maxMs: 100 },
});
const map = client.values(glob, { format: format === "avro" ? "avro" : "json" });
let syncs = 0;
const losses: string[] = [];
map.on("sync", () => {
  syncs += 1;
});
client.on("state", (state) => {
  if (state.status === "waiting") losses.push(state.error.code);
});
for await (const line of createInterface({ input: process.stdin })) {
  if (line.startsWith("send ")) {
    const [, topic, text] = line.split(" ") as [string, string, string];
    const answer = await client.send(topic, new TextEncoder().encode(text)).then(
      () => "accepted",
      (error) => error.code,
    );
    console.log(JSON.stringify(answer));
  } else {
    const entries = [...map].map(([topic, { value, revision, acceptedAt, headers }]) => [
      topic,
      { value: value instanceof Uint8Array ? [...value] : value, revision, acceptedAt, publisher: headers.publisher },
    ]);
    const { status } = client.state;
    console.log(JSON.stringify({ status, synced: map.synced, syncs, losses, entries: Object.fromEntries(entries) }));
  }
}
client.close();
