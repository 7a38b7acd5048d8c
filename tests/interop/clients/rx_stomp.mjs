// Drives @stomp/rx-stomp over WebSocket for third_party.py.
import { RxStomp, RxStompState } from '@stomp/rx-stomp';
import { Versions } from '@stomp/stompjs';
import { identity, serve, tell, trust } from './lines.mjs';

const client = new RxStomp();
const messages = new Map();

const watch = ({ receipt }) => client.asyncReceipt(receipt).then((frame) => tell('receipt', { headers: frame.headers }));

serve({
  connect(command) {
    trust(command.ca);
    client.configure({
      brokerURL: command.url,
      connectHeaders: { host: 'MAXVAPI', ...command.headers },
      stompVersions: new Versions([command.version]),
      heartbeatOutgoing: command.heart_beat[0],
      heartbeatIncoming: command.heart_beat[1],
      reconnectDelay: 0,
    });
    client.serverHeaders$.subscribe((headers) => tell('connected', { headers }));
    client.stompErrors$.subscribe((frame) => tell('error', { headers: frame.headers, body: frame.body }));
    client.webSocketErrors$.subscribe((event) => tell('error', { body: String(event.message) }));
    client.activate();
  },
  subscribe({ headers: { destination, ...headers } }) {
    watch(headers);
    client.watch({ destination, subHeaders: headers }).subscribe((message) => {
      messages.set(identity(message.headers), message);
      tell('message', { headers: message.headers, body: Buffer.from(message.binaryBody).toString('base64') });
    });
  },
  send({ headers: { destination, ...headers }, body }) {
    watch(headers);
    client.publish({ destination, headers, binaryBody: new Uint8Array(Buffer.from(body, 'base64')) });
  },
  ack({ message, headers }) {
    watch(headers);
    messages.get(identity(message)).ack(headers);
  },
  disconnect() {
    client.connectionState$.subscribe((state) => state === RxStompState.CLOSED && tell('closed'));
    client.deactivate();
  },
});
