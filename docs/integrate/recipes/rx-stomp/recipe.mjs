// Publish lines `DESTINATION JSON` of standard input, and print each change of a glob, with rx-stomp over WebSocket.
// Usage: node recipe.mjs HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]
// With a file for the position it continues by `since` in place of a durable subscription. The file has the topics too.
// In Node.js it shows a certificate to the admin listener. In a page leave out `webSocketFactory`, set `brokerURL`, and put a ticket
// into `connectHeaders` in `beforeConnect`; then a subscription cannot be durable, so store the position.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import { RxStomp, RxStompState } from '@stomp/rx-stomp';
import { Versions } from '@stomp/stompjs';
import { filter, skip } from 'rxjs';
import { WebSocket } from 'ws';
import { Resume } from '../resume.mjs';

const [host, port, ca, cert, key, glob, file] = process.argv.slice(2);
const resume = file && new Resume(file, (topic) => show(topic, ''));
// The same CONNECT would get these again, or two programs would take the session from each other for ever.
const FINAL = ['session taken over by a newer connection', 'unknown host', 'bad client-id'];

const sent = new Map(); // destinations of SENDs without a RECEIPT
const unsent = [];
let failures = 0;
let pauseMs = 0;
let reason = 'connection lost';

const client = new RxStomp();
client.configure({
  webSocketFactory: () =>
    new WebSocket(`wss://${host}:${port}/stomp`, ['v12.stomp'], {
      ca: readFileSync(ca), cert: readFileSync(cert), key: readFileSync(key),
      checkServerIdentity: () => undefined, // the chain is checked, the name is not
    }),
  stompVersions: new Versions([Versions.V1_2]),
  connectHeaders: { host: 'MAXVAPI', 'client-id': 'recipe-rx-stomp' },
  heartbeatOutgoing: 10_000,
  heartbeatIncoming: 10_000,
  connectionTimeout: 15_000,
  discardWebsocketOnCommFailure: true, // a gateway that is silent does not answer a close either
  // Its own pause has no jitter: all clients of a restarted gateway would come back at once.
  reconnectDelay: 1,
  beforeConnect: () => setTimeout(pauseMs),
});

client.connected$.subscribe(() => {
  console.log('connected');
  failures = 0;
  unsent.splice(0).forEach(publish);
});
client.stompErrors$.subscribe((frame) => {
  reason = frame.headers.message;
});
client.webSocketErrors$.subscribe((event) => {
  reason = String(event.message);
});
let leaving = false;
client.connectionState$.pipe(skip(1), filter((state) => state === RxStompState.CLOSED)).subscribe(() => { // it begins as CLOSED
  for (const topic of sent.values()) console.log('unknown', topic); // it may have been accepted
  sent.clear();
  if (leaving) return;
  if (FINAL.includes(reason)) {
    console.log('closed', reason);
    process.exit(1);
  }
  console.log('lost', reason);
  reason = 'connection lost';
  pauseMs = Math.random() * Math.min(30_000, 500 * 2 ** failures++);
});

// It subscribes again after each loss.
const subHeaders = () => ({
  id: 'all', ack: 'client', 'accept-format': 'json', ...(resume ? resume.begin() : { durable: 'true' }),
});
client.watch({ destination: glob, subHeaders }).subscribe((message) => {
  const { destination: topic, ack } = message.headers;
  if (!ack) return resume?.notice(message.headers); // a marker or a notice
  const body = new TextDecoder().decode(message.binaryBody);
  show(topic, body);
  resume?.took(topic, body !== '');
  message.ack(); // only then comes the next value of this topic
});

function show(topic, body) { // put the work of your program here; without body the topic is gone
  console.log(body ? 'value' : 'deleted', topic, body);
}

function publish(line) {
  const [destination, body] = line.split(/ (.*)/s);
  const receipt = crypto.randomUUID();
  sent.set(receipt, destination);
  client.asyncReceipt(receipt).then(({ headers }) => {
    sent.delete(receipt);
    console.log(headers.disposition, destination, headers.result ?? '');
  });
  client.publish({ destination, body: body ?? '', headers: { receipt, 'content-type': 'application/json' } });
}

client.activate();
createInterface({ input: process.stdin })
  .on('line', (line) => (client.connected() ? publish(line) : unsent.push(line)))
  .on('close', () => {
    leaving = true;
    client.deactivate(); // sends DISCONNECT and waits for its RECEIPT
  });
