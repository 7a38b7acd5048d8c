// Drives stompit for third_party.py.
import stompit from 'stompit';
import { credentials, identity, serve, tell } from './lines.mjs';

let client;
const messages = new Map();

// stompit's onReceipt tells that a RECEIPT came but not what it says, so we handle the command ourselves, and leave to
// stompit those that it asked for.
function watchReceipts() {
  const own = client._commandHandlers.RECEIPT;
  client.setCommandHandler('RECEIPT', function (frame, done) {
    if (!String(frame.headers['receipt-id']).startsWith('test-')) return own.call(this, frame, done);
    client.readEmptyBody(frame, done);
    tell('receipt', { headers: frame.headers });
  });
}

function read(message, then) {
  const chunks = [];
  message.on('data', (chunk) => chunks.push(chunk));
  message.on('end', () => then(Buffer.concat(chunks)));
}

serve({
  connect(command) {
    const connectHeaders = {
      host: 'MAXVAPI',
      'accept-version': command.version,
      'heart-beat': command.heart_beat.join(','),
      ...command.headers,
    };
    client = stompit.connect({ ...credentials(command), ssl: true, connectHeaders }, (error) => {
      if (error) return tell('error', { body: String(error.longMessage ?? error) });
      watchReceipts();
      client.on('error', (problem) => tell('error', { body: String(problem.longMessage ?? problem) }));
      tell('connected', { headers: client.headers });
    });
  },
  subscribe({ headers }) {
    client.subscribe(headers, (error, message) => {
      if (error) return;
      messages.set(identity(message.headers), message);
      read(message, (body) => tell('message', { headers: message.headers, body: body.toString('base64') }));
    });
  },
  unsubscribe({ headers }) {
    client.sendFrame('UNSUBSCRIBE', headers).end();
  },
  send({ headers, body }) {
    const content = Buffer.from(body, 'base64');
    const frame = client.send({ ...headers, 'content-length': content.length });
    if (content.length > 0) frame.write(content);
    frame.end();
  },
  ack({ message, headers }) {
    client.ack(messages.get(identity(message)), headers);
  },
  disconnect() {
    client.disconnect((error) => tell(error ? 'error' : 'closed', { body: String(error) }));
  },
});
