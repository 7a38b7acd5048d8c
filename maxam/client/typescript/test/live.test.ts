/** Live maps against a scripted gateway with faults, on a simulated clock. */

import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import {
  Client,
  type ClientOptions,
  type ClientState,
  type Entry,
  type LiveMap,
  type Saved,
} from "../src/index.ts";
import { type Faults, ScriptedGateway, SimulatedClock, settle } from "./simulation.ts";

const URL = "wss://gateway.test/stomp";

function world(options: Partial<ClientOptions> = {}) {
  const clock = new SimulatedClock();
  const gateway = new ScriptedGateway(clock);
  const client = new Client({ url: URL, transport: gateway, clock, ...options });
  const states: ClientState[] = [];
  client.on("state", (state) => states.push(state));
  return { clock, gateway, client, states };
}

function held(map: LiveMap<unknown>): Record<string, unknown> {
  return Object.fromEntries([...map].map(([topic, entry]) => [topic, entry.value]));
}

async function entryOf(topic: string): Promise<Entry<unknown>> {
  const { clock, gateway, client } = world();
  gateway.publish(topic, 0);
  const map = client.values(topic);
  await clock.pass(1);
  return map.get(topic) as Entry<unknown>;
}

test("a map holds all values at `sync`, and each later change", async () => {
  const { clock, gateway, client } = world();
  for (let n = 0; n < 35; n += 1) gateway.publish(`X/${n}`, { n });
  const map = client.values("X/*");
  const seen: string[] = [];
  map.on("update", (changes) => {
    for (const change of changes) seen.push(`${change.kind} ${change.topic}`);
  });
  map.on("sync", ({ full }) => seen.push(`sync ${full} ${map.size}`));
  await clock.pass(1);
  assert.deepEqual(held(map), gateway.expected());
  assert.equal(seen.at(-1), "sync true 35");
  assert.equal(map.synced, true);
  gateway.publish("X/1", { n: "new" });
  gateway.publish("X/2", undefined);
  await clock.pass(1);
  assert.deepEqual(seen.slice(-2), ["value X/1", "delete X/2"]);
  assert.deepEqual(held(map), gateway.expected());
  assert.equal(map.get("X/1")?.acceptedAt, 36);
});

async function endsEqual(faults: (connection: number) => Faults): Promise<number> {
  const { clock, gateway, client } = world();
  gateway.faults = faults;
  for (let n = 0; n < 4; n += 1) gateway.publish(`X/${n}`, n);
  const map = client.values("X/*");
  await clock.pass(1);
  gateway.publish("X/1", undefined);
  gateway.publish("X/4", 4);
  await clock.pass(1);
  gateway.publish("X/0", "last");
  gateway.publish("X/2", undefined);
  await clock.pass(60_000);
  assert.deepEqual(held(map), gateway.expected());
  assert.equal(map.synced, true);
  return gateway.opened;
}

test("a connection that is cut after any byte ends with the values of the broker", async () => {
  let cut = 0;
  while ((await endsEqual((connection) => (connection === 1 ? { cutAfter: cut } : {}))) > 1) cut += 1;
  assert.ok(cut > 1000, `${cut} bytes`);
});

test("two connections that are cut, the second one after any byte, end with the values of the broker", async () => {
  for (let cut = 0; cut < 900; cut += 1) {
    await endsEqual((connection) => [{ cutAfter: 700 }, { cutAfter: cut }][connection - 1] ?? {});
  }
});

type Step =
  | { do: "publish"; topic: number; value: number | undefined }
  | { do: "pass"; ms: number }
  | { do: "restart" | "restore" | "forget" | "save" | "revive" | "freeze" };

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant("publish" as const),
      topic: fc.nat(14),
      value: fc.option(fc.nat(9), { nil: undefined }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("pass" as const), ms: fc.constantFrom(0, 1, 7, 400, 9000) }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constantFrom("restart", "restore", "forget", "save", "revive", "freeze") }),
  },
);
const faults: fc.Arbitrary<Faults> = fc.record({
  cutAfter: fc.option(fc.nat(4000), { nil: undefined }),
  chunk: fc.option(fc.integer({ min: 1, max: 300 }), { nil: undefined }),
  delay: fc.option(fc.nat(50), { nil: undefined }),
  duplicate: fc.boolean(),
});

test("whatever happens, the map and what a listener saw of it end equal to the broker, also after it was stored and loaded", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { minLength: 5, maxLength: 60 }),
      fc.array(faults, { maxLength: 6 }),
      fc.boolean(),
      async (steps, plan, slow) => {
        const { clock, gateway, client } = world();
        gateway.faults = (connection) => plan[connection - 1] ?? {};
        let map = client.values("X/*");
        let mirror = new Map<string, unknown>();
        let stored: { saved: Saved<unknown>; mirror: Map<string, unknown> } | undefined;
        const watch = () => {
          const own = mirror;
          map.on("update", (changes) => {
            for (const { topic, entry } of changes) entry ? own.set(topic, entry.value) : own.delete(topic);
            return slow ? new Promise<void>((resolve) => clock.after(5, resolve)) : undefined;
          });
        };
        watch();
        for (const one of steps) {
          if (one.do === "publish") gateway.publish(`X/${one.topic}`, one.value);
          else if (one.do === "pass") await clock.pass(one.ms);
          else if (one.do === "restart") gateway.restart();
          else if (one.do === "restore") gateway.restore();
          else if (one.do === "forget") gateway.forgetDeletes();
          else if (one.do === "freeze") clock.freeze(30_000);
          else if (one.do === "save") {
            const saved = map.save();
            if (saved)
              stored = {
                saved: JSON.parse(JSON.stringify(saved)),
                mirror: new Map(saved.entries.map(([topic, { value }]) => [topic, value])),
              };
          } else {
            map.close();
            mirror = new Map(stored?.mirror);
            map = client.values("X/*", stored?.saved ?? {});
            watch();
          }
        }
        await clock.pass(120_000);
        assert.deepEqual(held(map), gateway.expected());
        assert.deepEqual(Object.fromEntries(mirror), gateway.expected());
        assert.equal(map.synced, true);
        client.close();
      },
    ),
    { numRuns: 300 },
  );
});

test("a position counts after the listeners have the values before it, and a slow listener holds back the ACK", async () => {
  const { clock, gateway, client } = world();
  const map = client.values("X/*");
  await clock.pass(1);
  const before = map.since;
  let finish = () => {};
  map.on("update", () => new Promise<void>((resolve) => (finish = resolve)));
  gateway.publish("X/1", 1);
  await clock.pass(1);
  gateway.publish("X/1", 2);
  gateway.publish("X/1", 3);
  await clock.pass(1);
  assert.equal(map.since, before);
  assert.equal(gateway.count("ACK"), 0);
  assert.equal(map.get("X/1")?.value, 1);
  finish();
  await clock.pass(1);
  assert.equal(map.get("X/1")?.value, 3); // 2 was skipped
  finish();
  await clock.pass(1);
  assert.notEqual(map.since, before);
});

test("a reconnect continues from the position: only what changed meanwhile comes", async () => {
  const { clock, gateway, client } = world();
  for (let n = 0; n < 30; n += 1) gateway.publish(`X/${n}`, n);
  const map = client.values("X/*");
  await clock.pass(1);
  const seen: string[] = [];
  map.on("update", (changes) => seen.push(...changes.map(({ kind, topic }) => `${kind} ${topic}`)));
  map.on("sync", ({ full }) => seen.push(`sync ${full}`));
  gateway.restart();
  gateway.publish("X/3", "new");
  gateway.publish("X/4", undefined);
  await clock.pass(5000);
  assert.deepEqual(seen, ["value X/3", "delete X/4", "sync false"]);
  assert.equal(map.save()?.since, map.since);
});

test("a position before the map is complete does not count", async () => {
  const { clock, gateway, client } = world();
  gateway.faults = () => ({ delay: 10 });
  for (let n = 0; n < 30; n += 1) gateway.publish(`X/${n}`, n);
  const map = client.values("X/*");
  await clock.pass(15);
  gateway.connections[0]?.notice("$marker", { kind: "position", position: "1.999" });
  await clock.pass(10);
  assert.equal(map.synced, false);
  assert.equal(map.since, undefined);
  await clock.pass(1000);
  assert.equal(map.since, "1.30");
});

test("a map whose connection is lost while a listener still handles the end of a full state is not complete", async () => {
  const { clock, gateway, client } = world();
  gateway.publish("X/1", 1);
  const map = client.values("X/*");
  await clock.pass(1);
  gateway.restore();
  gateway.publish("X/1", undefined);
  gateway.publish("X/2", 2);
  let finish = () => {};
  map.on("update", ([change]) => {
    if (change?.kind === "left") return new Promise<void>((resolve) => (finish = resolve));
    return undefined;
  });
  await clock.pass(5000);
  assert.equal(map.state.status, "loading");
  gateway.down = true;
  gateway.restart();
  await clock.pass(1);
  finish();
  await clock.pass(1);
  assert.equal(map.state.status, "waiting");
  assert.equal(map.since?.startsWith("1."), true);
  gateway.down = false;
  await clock.pass(60_000);
  assert.equal(map.synced, true);
  assert.deepEqual(held(map), gateway.expected());
});

test("a listener that throws is reported, and stops nothing", async () => {
  const { clock, gateway, client } = world();
  const map = client.values("X/*");
  const reported: unknown[] = [];
  globalThis.reportError = (error) => reported.push(error);
  map.on("update", () => {
    throw new Error("of the application");
  });
  gateway.publish("X/1", 1);
  await clock.pass(1);
  assert.equal(reported.length, 1);
  assert.deepEqual(held(map), gateway.expected());
  assert.equal(gateway.count("ACK"), 1);
});

test("stale and fresh topics are reported, and a new SUBSCRIBE begins with fresh ones", async () => {
  const { clock, gateway, client } = world();
  gateway.publish("X/1", 1);
  const map = client.values("X/*");
  await clock.pass(1);
  const kinds: string[] = [];
  map.on("update", (changes) => kinds.push(...changes.map(({ kind, reason }) => `${kind} ${reason}`)));
  const notice = (kind: string, reason: string) => gateway.connections[0]?.notice("X/1", { kind, reason });
  notice("stale", "overdue");
  await clock.pass(1);
  assert.equal(map.get("X/1")?.stale, "overdue");
  notice("fresh", "link-up");
  notice("stale", "link-down");
  await clock.pass(1);
  gateway.restart();
  await clock.pass(5000);
  assert.equal(map.get("X/1")?.stale, undefined);
  assert.deepEqual(kinds, ["stale overdue", "fresh undefined", "stale link-down", "fresh undefined"]);
  gateway.connections[0]?.notice("X/1", { kind: "left", reason: "rights" });
  await clock.pass(1);
  assert.equal(map.size, 0);
  assert.equal(kinds.at(-1), "left rights");
});

for (const message of [
  "no common version",
  "unknown host",
  "bad client-id",
  "unknown client",
  "unauthenticated",
  "certificate revoked",
  "certificate expired",
  "certificate not trusted",
  "session taken over by a newer connection",
]) {
  test(`"${message}" is final: there is no other attempt, and all maps are closed with it`, async () => {
    const { clock, gateway, client } = world();
    const map = client.values("X/*");
    gateway.refuse = (frame) => (frame.command === "CONNECT" ? message : undefined);
    await clock.pass(3_600_000);
    const code = message.replaceAll(" ", "-");
    assert.equal(gateway.opened, 1);
    assert.equal(client.state.error?.code, code);
    assert.equal(client.state.error?.temporary, false);
    assert.equal(map.state.error?.code, code);
    await assert.rejects(map.ready(), { code });
    await assert.rejects(client.open(), { code });
    assert.equal(client.values("X/*").state.error?.code, code);
  });
}

test("a client whose session is taken over does not come back", async () => {
  const { clock, gateway, client } = world();
  const map = client.values("X/*");
  await clock.pass(1);
  gateway.connections[0]?.error("session taken over by a newer connection");
  await clock.pass(3_600_000);
  assert.equal(gateway.opened, 1);
  assert.equal(map.state.status, "closed");
});

test("a temporary ERROR is tried again, with a pause that doubles and is random down to zero", async () => {
  const { clock, gateway, client, states } = world();
  gateway.refuse = (frame) => (frame.command === "CONNECT" ? "broker is stopping" : undefined);
  client.open().catch(() => {});
  await clock.pass(200_000);
  const pauses = () => states.flatMap((state) => (state.status === "waiting" ? [state.retryInMs] : []));
  assert.deepEqual(pauses().slice(0, 8), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
  states.length = 0;
  clock.random = () => 0.25;
  await clock.pass(60_000);
  assert.equal(pauses().at(-1), 7500);
  assert.equal(client.state.error?.temporary, true);
  gateway.refuse = () => undefined;
  await clock.pass(30_000);
  await clock.pass(10_000);
  gateway.restart(); // after a stable connection
  await clock.pass(1);
  assert.equal(client.state.status === "waiting" && client.state.retryInMs, 125);
  client.close();
});

test("a refused subscription ends, is never sent again, and the others live on", async () => {
  const { clock, gateway, client } = world();
  gateway.publish("X/1", 1);
  gateway.refuse = ({ command, headers }) => (command === "SUBSCRIBE" && headers.selector ? "bad selector" : undefined);
  const well = client.values("X/*");
  const wrong = client.values("X/*", { selector: "a =" });
  await clock.pass(600_000);
  assert.equal(wrong.state.error?.code, "bad-selector");
  assert.equal(wrong.state.error?.temporary, false);
  assert.equal(gateway.received.filter(({ headers }) => headers.selector).length, 1);
  assert.equal(gateway.opened, 2);
  assert.deepEqual(held(well), gateway.expected());
});

test("a final error is written to the console once if nothing listens to the state", async (context) => {
  const { mock } = context.mock.method(console, "error", () => {});
  const clock = new SimulatedClock();
  const gateway = new ScriptedGateway(clock);
  const client = new Client({ url: URL, transport: gateway, clock });
  gateway.refuse = ({ headers }) => (headers.selector ? "bad selector" : undefined);
  client.values("X/*", { selector: "b =" }).on("state", () => {});
  await clock.pass(60_000);
  assert.equal(mock.callCount(), 0);
  client.values("X/*", { selector: "a =" });
  await clock.pass(60_000);
  assert.equal(mock.callCount(), 1);
  client.values("X/*");
  gateway.refuse = () => "unknown host";
  gateway.restart();
  await clock.pass(60_000);
  assert.equal(client.state.status, "closed");
  assert.equal(mock.callCount(), 2);
});

test("a subscription that meets a full disk is sent again", async () => {
  const { clock, gateway, client } = world();
  let refusals = 2;
  gateway.refuse = ({ command }) => (command === "SUBSCRIBE" && refusals-- > 0 ? "disk full" : undefined);
  const map = client.values("X/*");
  await clock.pass(60_000);
  assert.equal(map.synced, true);
});

test("a glob that cannot be sent closes its map and not the connection", async () => {
  const { clock, gateway, client } = world();
  const map = client.values("X/\0");
  await clock.pass(60_000);
  assert.equal(map.state.error?.code, "bad-header");
  assert.equal(gateway.opened, 1);
});

test("each connect has a new ticket, and a gateway that refuses three in sequence is final", async () => {
  let tickets = 0;
  const { clock, gateway, client } = world({ ticket: async () => `ticket-${++tickets}` });
  client.open().catch(() => {});
  await clock.pass(1);
  gateway.restart();
  await clock.pass(5000);
  const connects = () => gateway.received.filter(({ command }) => command === "CONNECT").map(({ headers }) => headers);
  assert.deepEqual(
    connects().map(({ login, passcode }) => `${login} ${passcode}`),
    ["ticket ticket-1", "ticket ticket-2"],
  );
  assert.equal(connects()[1]?.["client-id"], "session-1"); // the half-open connection of the session ends
  gateway.refuse = ({ command }) => (command === "CONNECT" ? "ticket invalid" : undefined);
  gateway.restart();
  await clock.pass(3_600_000);
  assert.equal(tickets, 5);
  assert.equal(client.state.error?.code, "ticket-invalid");
  assert.equal(client.state.error?.temporary, false);
});

test("a token that expires on a live connection is replaced, for as long as it takes", async () => {
  let tokens = 0;
  const { clock, gateway, client } = world({ token: () => `token-${++tokens}` });
  const map = client.values("X/*");
  for (let n = 1; n < 20; n += 1) {
    await clock.pass(3_600_000);
    assert.equal(map.synced, true);
    gateway.connections[0]?.error("token expired");
  }
  assert.equal(client.state.status, "connected");
  await clock.pass(10_000);
  assert.equal(tokens, 20);
});

test("a backend that fails is asked again, and one that never answers is given up after the timeout", async () => {
  let asked = 0;
  const { clock, gateway, client, states } = world({
    connectTimeoutMs: 100,
    ticket: (signal) => {
      asked += 1;
      if (asked === 1) throw new Error("503");
      if (asked === 2)
        return new Promise(() => signal.addEventListener("abort", () => states.push({ status: "idle" })));
      return Promise.resolve("ticket");
    },
  });
  const map = client.values("X/*");
  await clock.pass(60_000);
  assert.equal(asked, 3);
  assert.equal(gateway.opened, 2); // the first one was closed when the backend failed
  assert.equal(map.synced, true);
  const seen = states.flatMap((state) =>
    state.status === "waiting" ? [state.error.code] : state.status === "idle" ? ["abort"] : [],
  );
  assert.deepEqual(seen, ["credential-failed", "abort", "credential-failed"]);
});

test("a page that is hidden for a day, with timers once a minute, keeps its connection and its values", async () => {
  const { clock, gateway, client } = world();
  const map = client.values("X/*");
  await clock.pass(1);
  clock.throttle = 60_000;
  for (let minute = 0; minute < 24 * 60; minute += 1) {
    gateway.publish(`X/${minute % 50}`, minute);
    await clock.pass(60_000);
  }
  assert.equal(gateway.opened, 1);
  assert.deepEqual(held(map), gateway.expected());
});

test("a page that sleeps and wakes for a day loses nothing, with or without its connection", async () => {
  const { clock, gateway, client } = world();
  const map = client.values("X/*");
  await clock.pass(1);
  for (let hour = 0; hour < 24; hour += 1) {
    for (let n = 0; n < 30; n += 1) gateway.publish(`X/${(n * 7) % 50}`, n % 5 ? `${hour} ${n}` : undefined);
    if (hour % 3 === 0) gateway.restart(); // the network was gone meanwhile
    if (hour % 5 === 0) gateway.forgetDeletes();
    clock.freeze(3_600_000);
    await clock.pass(100_000);
    assert.deepEqual(held(map), gateway.expected());
    assert.equal(map.synced, true);
  }
  assert.equal(gateway.opened, 1 + 8);
});

test("a dead connection is noticed after twice the interval", async () => {
  const { clock, gateway, client, states } = world();
  const map = client.values("X/*");
  await clock.pass(1);
  const [connection] = gateway.connections;
  if (connection) connection.silent = true;
  await clock.pass(30_000);
  assert.equal(gateway.opened, 2);
  assert.equal(map.synced, true);
  assert.deepEqual(
    states.map(({ status }) => status),
    ["connecting", "connected", "waiting", "connecting", "connected"],
  );
});

test("of several addresses the next one is tried after each failure", async () => {
  const { clock, gateway, client } = world({ url: [`${URL}1`, `${URL}2`] });
  const urls: string[] = [];
  const open = gateway.open.bind(gateway);
  gateway.open = (url, events) => {
    urls.push(url);
    return open(url, events);
  };
  gateway.down = true;
  const opened = client.open();
  await clock.pass(4000);
  gateway.down = false;
  await clock.pass(10_000);
  await opened;
  assert.deepEqual(urls, [`${URL}1`, `${URL}2`, `${URL}1`, `${URL}2`].slice(0, urls.length));
  assert.ok(urls.length > 2);
});

test("signals end a map, a client, and the wait for a connection", async () => {
  const all = new AbortController();
  const one = new AbortController();
  const { clock, gateway, client } = world({ signal: all.signal });
  const map = client.values("X/*", { signal: one.signal });
  const other = client.values("X/*");
  await clock.pass(1);
  one.abort();
  await clock.pass(1);
  assert.deepEqual(map.state, { status: "closed", error: undefined });
  assert.equal(gateway.count("UNSUBSCRIBE"), 1);
  assert.equal(other.synced, true);
  all.abort();
  await clock.pass(1);
  assert.deepEqual(client.state, { status: "closed", error: undefined });
  assert.equal(gateway.count("DISCONNECT"), 1);
  assert.equal(gateway.connections.length, 0);
  await assert.rejects(other.ready(), { code: "closed" });

  const waiting = world();
  waiting.gateway.down = true;
  const patience = new AbortController();
  const opened = waiting.client.open({ signal: patience.signal });
  patience.abort(new Error("enough"));
  await assert.rejects(opened, { message: "enough" });
  waiting.client.close();
  await assert.rejects(waiting.client.send("X/1", 1), { code: "closed" });
});

test("the first connection is opened while the ticket is fetched, and has what came meanwhile", async () => {
  let give = (_ticket: string) => {};
  const { clock, gateway, client } = world({ ticket: () => new Promise((resolve) => (give = resolve)) });
  const map = client.values("X/*");
  await clock.pass(1000);
  assert.equal(gateway.opened, 1);
  assert.equal(gateway.received.length, 0);
  give("late");
  await clock.pass(1);
  assert.equal(map.synced, true);
  assert.equal(gateway.opened, 1);
});

test("SUBSCRIBE follows CONNECT at once, and a refused CONNECT changes nothing in the map", async () => {
  const { clock, gateway, client, states } = world({ pause: { minMs: 1000 } }); // 2 s after the first loss
  gateway.faults = () => ({ delay: 100 });
  const map = client.values("X/*", { since: "1.1", entries: [["X/1", { ...(await entryOf("X/1")), stale: "overdue" }]] });
  const seen: string[] = [];
  map.on("state", ({ status }) => seen.push(status));
  map.on("update", (changes) => seen.push(...changes.map(({ kind }) => kind)));
  gateway.publish("X/1", 1);
  gateway.refuse = ({ command }) => (command === "CONNECT" ? "too many connects" : undefined);
  await clock.pass(50);
  assert.deepEqual(
    gateway.received.map(({ command }) => command),
    ["CONNECT"],
  );
  await clock.pass(100);
  assert.deepEqual(seen, ["waiting"]);
  assert.equal(map.get("X/1")?.stale, "overdue");
  gateway.refuse = () => undefined;
  await clock.pass(1980);
  assert.deepEqual(
    gateway.received.map(({ command }) => command),
    ["CONNECT", "CONNECT", "SUBSCRIBE"],
  );
  assert.deepEqual(seen, ["waiting"]);
  await clock.pass(100);
  assert.deepEqual(seen, ["waiting", "fresh", "loading", "live"]);
  assert.deepEqual(
    states.map(({ status }) => status),
    ["connecting", "waiting", "connecting", "connected"],
  );
});

test("a map that is made while the client connects subscribes at once", async () => {
  const { clock, gateway, client } = world();
  gateway.faults = () => ({ delay: 100 });
  client.values("X/*");
  await clock.pass(50);
  client.values("Y/*");
  client.on("state", () => client.values("Z/*"));
  await clock.pass(200);
  assert.deepEqual(
    gateway.received.slice(1, 4).map(({ headers }) => headers.destination),
    ["X/*", "Y/*", "Z/*"],
  );
  assert.equal(gateway.count("SUBSCRIBE"), 3);
});

test("a connection that was lost while the ticket was fetched is made again", async () => {
  let give = (_ticket: string) => {};
  const { clock, gateway, client, states } = world({ ticket: () => new Promise((resolve) => (give = resolve)) });
  const map = client.values("X/*");
  await clock.pass(1000);
  gateway.restart();
  give("one");
  await clock.pass(5000);
  assert.deepEqual(
    states.map(({ status }) => status),
    ["connecting", "waiting", "connecting"],
  );
  give("two");
  await clock.pass(1);
  assert.equal(map.synced, true);
  assert.equal(gateway.opened, 2);
});

test("a client that is closed while it fetches a ticket sends nothing", async () => {
  let give = (_ticket: string) => {};
  const { clock, gateway, client } = world({ ticket: () => new Promise((resolve) => (give = resolve)) });
  client.values("X/*");
  await settle();
  client.close();
  give("late");
  await clock.pass(60_000);
  assert.equal(gateway.received.length, 0);
  assert.equal(gateway.connections.length, 0);
  assert.equal(client.state.status, "closed");
});

test("a SEND is answered, and one without an answer has an unknown outcome", async () => {
  const { clock, gateway, client } = world();
  const sent = client.send("X/1", { n: 2n ** 60n });
  await clock.pass(1);
  assert.equal((await sent).disposition, "accepted");
  assert.deepEqual(gateway.expected(), { "X/1": { n: "1152921504606846976" } });
  gateway.faults = () => ({ cutAfter: 0 });
  gateway.refuse = ({ command }) => (command === "SEND" ? "internal error" : undefined);
  const refused = client.send("X/1", 1);
  const unknown = client.send("X/1", 2);
  await Promise.all([
    assert.rejects(refused, { code: "internal-error" }),
    assert.rejects(unknown, { code: "outcome-unknown", temporary: true }),
    clock.pass(1),
  ]);
});

test("options of a map become headers, and only those that were given", async () => {
  const { clock, gateway, client } = world();
  client.values("X/*", { selector: "a > 1", minIntervalMs: 500, changesOnly: true, fields: ["a", "b.c"] });
  client.values("X/*", { format: "avro", metadata: false });
  await clock.pass(1);
  const headers = gateway.received
    .filter(({ command }) => command === "SUBSCRIBE")
    .map((frame) => ({ ...frame.headers }));
  const common = { destination: "X/*", ack: "client", eager: "true", markers: "true" };
  assert.deepEqual(headers, [
    {
      receipt: "1",
      id: "v1",
      ...common,
      metadata: "true",
      selector: "a > 1",
      "min-interval": "500",
      "changes-only": "true",
      fields: "a,b.c",
      "accept-format": "json",
    },
    { receipt: "2", id: "v2", ...common },
  ]);
});

test("raw bodies, longs, and a decoder that fails", async () => {
  const { clock, gateway, client } = world();
  gateway.publish("X/1", { turnover: "9007199254740993", count: 1 });
  const raw = client.values<Uint8Array>("X/*", { format: "avro" });
  const longs = client.values<{ turnover: bigint }>("X/*", { longs: ["turnover"] });
  const wrong = client.values("X/*", {
    decode: () => {
      throw new Error("no");
    },
  });
  await clock.pass(60_000);
  assert.equal(new TextDecoder().decode(raw.get("X/1")?.value), '{"turnover":"9007199254740993","count":1}');
  assert.equal(longs.get("X/1")?.value.turnover, 9007199254740993n);
  assert.equal(wrong.state.error?.code, "bad-value");
  assert.equal(gateway.opened, 1);
});
