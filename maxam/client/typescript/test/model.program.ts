/**
 * A live map in lock-step with a test that has the broker: tests/support/typescript_client.py.
 *
 * Each line of standard input is a command, and is answered by a line. Time passes and bytes arrive by commands only. The answer has
 * what the client did with its streams, and the time of its next timer.
 */

import { createInterface } from "node:readline";
import { lost } from "../src/errors.ts";
import { Client, type LiveMap, type ValuesOptions } from "../src/index.ts";
import type { ChannelEvents, Transport } from "../src/transport.ts";
import { SimulatedClock } from "./simulation.ts";

interface Command {
  do: "start" | "opened" | "received" | "ended" | "tick";
  /** Milliseconds since `start`. */
  now: number;
  channel: number;
  data: string;
  /** With `start`: continue with what the program before had stored when it was killed. */
  again: boolean;
  /** With `start`: milliseconds that the application takes for each update. */
  pace: number;
  options: ValuesOptions<Uint8Array>;
}

/** One run of the program. The next one forgets it, as after a kill. */
interface Run {
  client: Client;
  clock: SimulatedClock;
  map: LiveMap<Uint8Array>;
  /** The values by the updates that a listener got. */
  mirror: Map<string, string>;
  channels: ChannelEvents[];
}

let acts: [string, number, string?][] = [];
/** Position, map and mirror that belong together, as an application stores them. */
let stored: { since: string; entries: string; mirror: Map<string, string> } | undefined;

const encode = (body: Uint8Array) => Buffer.from(body).toString("base64");

function start({ again, pace, options }: Command): Run {
  if (!again) stored = undefined;
  const clock = new SimulatedClock();
  const channels: ChannelEvents[] = [];
  const transport: Transport = {
    heartBeatMs: 0,
    open(_url, events) {
      const channel = channels.push(events) - 1;
      acts.push(["open", channel]);
      return {
        send: (bytes) => acts.push(["send", channel, encode(bytes)]),
        close: () => acts.push(["close", channel]),
      };
    },
  };
  const client = new Client({ url: "wss://gateway.test/stomp", clientId: "me", transport, clock });
  const entries = JSON.parse(stored?.entries ?? "[]", (name, value) =>
    name === "value" ? new Uint8Array(Buffer.from(value, "base64")) : value,
  );
  const map = client.values<Uint8Array>("X/**", { ...options, format: "avro", since: stored?.since, entries });
  const mirror = new Map(stored?.mirror);
  map.on("update", (changes) => {
    for (const { topic, entry } of changes) entry ? mirror.set(topic, encode(entry.value)) : mirror.delete(topic);
    return pace ? new Promise<void>((resolve) => clock.after(pace, resolve)) : undefined;
  });
  map.on("position", (since) => {
    const all = [...map].map(([topic, entry]) => [topic, { ...entry, value: encode(entry.value) }]);
    stored = { since, entries: JSON.stringify(all), mirror: new Map(mirror) };
  });
  return { client, clock, map, mirror, channels };
}

let run: Run | undefined;
for await (const line of createInterface({ input: process.stdin })) {
  const command: Command = JSON.parse(line);
  if (command.do === "start") run = start(command);
  const { client, clock, map, mirror, channels } = run as Run;
  await clock.pass(Math.max(command.now - clock.now(), 0));
  const events = channels[command.channel];
  if (command.do === "opened") events?.opened();
  else if (command.do === "received") events?.received(Buffer.from(command.data, "base64"));
  else if (command.do === "ended") events?.ended(lost("cut"));
  await clock.pass(0);
  const held = Object.fromEntries([...map].map(([topic, { value }]) => [topic, encode(value)]));
  const ended = client.state.status === "closed" ? client.state.error?.code : undefined;
  const answer = { acts, due: clock.due, map: held, mirror: Object.fromEntries(mirror), synced: map.synced, ended };
  acts = [];
  console.log(JSON.stringify(answer));
}
