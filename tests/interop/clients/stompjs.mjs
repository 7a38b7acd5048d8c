// Drives @stomp/stompjs for third_party.py: over @stomp/tcp-wrapper, or over WebSocket if there is a `url`.
import { connect as tlsConnect } from 'node:tls';
import { Client, Versions } from '@stomp/stompjs';
import { TCPWrapper } from '@stomp/tcp-wrapper';
import { credentials, identity, serve, tell, trust } from './lines.mjs';

// The wrapper opens its socket in its constructor, so the certificates cannot be a field of the subclass.
function tlsSocketFactory(options) {
  class TLSWrapper extends TCPWrapper {
    getSocket() {
      return tlsConnect(options);
    }
  }
  return () => new TLSWrapper(options.host, options.port);
}

let client;
const messages = new Map();

const watch = ({ receipt }) => client.watchForReceipt(receipt, (frame) => tell('receipt', { headers: frame.headers }));

serve({
  connect(command) {
    if (command.url) trust(command.ca);
    client = new Client({
      ...(command.url ? { brokerURL: command.url } : { webSocketFactory: tlsSocketFactory(credentials(command)) }),
      connectHeaders: { host: 'MAXVAPI', ...command.headers },
      stompVersions: new Versions([command.version]),
      heartbeatOutgoing: command.heart_beat[0],
      heartbeatIncoming: command.heart_beat[1],
      reconnectDelay: 0,
      onConnect: (frame) => tell('connected', { headers: frame.headers }),
      onStompError: (frame) => tell('error', { headers: frame.headers, body: frame.body }),
      onWebSocketError: (event) => tell('error', { body: String(event.message) }),
      onWebSocketClose: () => tell('closed'),
    });
    client.activate();
  },
  subscribe({ headers: { destination, ...headers } }) {
    watch(headers);
    client.subscribe(
      destination,
      (message) => {
        messages.set(identity(message.headers), message);
        tell('message', { headers: message.headers, body: Buffer.from(message.binaryBody).toString('base64') });
      },
      headers,
    );
  },
  unsubscribe({ headers: { id, ...headers } }) {
    watch(headers);
    client.unsubscribe(id, headers);
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
    client.deactivate();
  },
});
