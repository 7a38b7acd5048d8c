// Drive @stomp/stompjs for `maxam-conformance`: over @stomp/tcp-wrapper and TLS, or over WebSocket with tickets.
//
// It does what the library leaves to its program: it subscribes in onConnect, waits with full jitter in beforeConnect, and gives up
// after final ERRORs, as docs/integrate/recipes/stompjs does.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { connect as tlsConnect } from "node:tls";
import { setTimeout } from "node:timers/promises";
import { Client, Versions } from "@stomp/stompjs";
import { TCPWrapper } from "@stomp/tcp-wrapper";
import { WebSocket } from "ws";

const FINAL = ["session taken over by a newer connection", "unknown host", "bad client-id"];
const report = (saw, rest) => process.stdout.write(`${JSON.stringify({ saw, ...rest })}\n`);

let client;
const subscriptions = new Map(); // commands by name
const sent = new Set(); // ids of SENDs without a RECEIPT
const unsent = [];
const tickets = [];
const held = new Map(); // by subscription: goes on after the value that is held
let failures = 0;
let pauseMs = 0;
let reason = "";

function connect(command) {
  const options = {
    ca: readFileSync(command.ca),
    checkServerIdentity: () => undefined,
    ...(command.certificate && { cert: readFileSync(command.certificate), key: readFileSync(command.key) }),
  };
  const { hostname: host, port } = new URL(command.url.replace("stomp+tls:", "https:"));
  class TLSWrapper extends TCPWrapper {
    getSocket() {
      return tlsConnect({ host, port: Number(port), ...options });
    }
  }
  const web = command.url.startsWith("wss:");
  client = new Client({
    webSocketFactory: () =>
      web ? new WebSocket(command.url, ["v12.stomp"], options) : new TLSWrapper(host, Number(port)),
    stompVersions: new Versions([Versions.V1_2]),
    connectHeaders: { host: command.host, "client-id": command.client_id },
    heartbeatOutgoing: command.heart_beat_ms,
    heartbeatIncoming: command.heart_beat_ms,
    connectionTimeout: 5000,
    discardWebsocketOnCommFailure: true, // a gateway that is silent does not answer a close either
    reconnectDelay: 1,
    async beforeConnect() {
      await setTimeout(pauseMs);
      if (!web) return;
      report("ticket-wanted");
      const passcode = await new Promise((resolve) => tickets.push(resolve));
      client.connectHeaders = { ...client.connectHeaders, login: "ticket", passcode };
    },
    onConnect() {
      report("connected");
      failures = 0;
      for (const one of subscriptions.values()) begin(one);
      for (const one of unsent.splice(0)) publish(one);
    },
    onStompError: (frame) => {
      reason = frame.headers.message;
    },
    onWebSocketClose() {
      for (const id of sent) report("unknown", { id });
      sent.clear();
      if (FINAL.includes(reason)) {
        report("closed", { code: reason });
        client.deactivate();
      }
      reason = "";
      pauseMs = Math.random() * Math.min(10_000, 500 * 2 ** failures++);
    },
  });
  client.activate();
}

function begin({ subscription, destination, hold, markers }) {
  const queue = [];
  let busy = false;
  async function work() {
    busy = true;
    for (let message = queue.shift(); message; message = queue.shift()) {
      const about = { subscription, destination: message.headers.destination };
      const body = Buffer.from(message.binaryBody).toString("base64");
      if (body) report("value", { ...about, body, headers: message.headers });
      else report("deleted", about);
      if (hold) await new Promise((resolve) => held.set(subscription, resolve));
      if (message.headers.ack) message.ack();
    }
    busy = false;
  }
  const receive = (message) => {
    if (message.headers.destination === "$marker") return;
    queue.push(message);
    if (!busy) work();
  };
  client.subscribe(destination, receive, { id: subscription, ack: "client", eager: "true", ...(markers && { markers }) });
}

function publish({ id, destination, body, headers }) {
  sent.add(id);
  client.watchForReceipt(id, ({ headers: { disposition, result } }) => {
    sent.delete(id);
    if (disposition === "accepted") report("accepted", { id });
    else report("rejected", { id, result, temporary: disposition === "rejected-unavailable" });
  });
  const binaryBody = new Uint8Array(Buffer.from(body, "base64"));
  client.publish({ destination, binaryBody, headers: { ...headers, receipt: id } });
}

const actions = {
  connect,
  subscribe(command) {
    subscriptions.set(command.subscription, command);
    if (client.connected) begin(command);
  },
  send: (command) => (client.connected ? publish(command) : unsent.push(command)),
  done: ({ subscription }) => held.get(subscription)?.(),
  ticket: ({ ticket }) => tickets.shift()(ticket),
};

createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    actions[command.do](command);
  })
  .on("close", () => process.exit());
report("ready", { claims: ["publisher", "subscriber"], except: ["sends-again", "refused-subscription"] });
