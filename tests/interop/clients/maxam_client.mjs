// Drives @maxam/client over WebSocket for third_party.py. MAXAM_CLIENT is the built package.
import { serve, tell, trust } from './lines.mjs';

const { Client } = await import(process.env.MAXAM_CLIENT);
const texts = new TextEncoder();
let client;

serve({
  connect(command) {
    trust(command.ca);
    const secrets = command.headers.passcode.split(','); // one for each connection, and nothing after them
    const next = () => secrets.shift() ?? 'none';
    const credentials = command.headers.login === 'jwt' ? { token: next } : { ticket: next };
    client = new Client({ url: command.url, ...credentials, pause: { minMs: 1, maxMs: 2 } });
    client.on('state', ({ status, session, error }) => {
      if (status === 'connected') tell('connected', { headers: { session } });
      else if (status === 'waiting') tell('error', { headers: { code: error.code }, body: error.message });
      else if (status === 'closed') tell('closed');
    });
    client.open().catch(() => undefined);
  },
  subscribe({ headers }) {
    const json = headers['accept-format'] === 'json';
    const map = client.values(headers.destination, { format: json ? 'json' : 'avro' });
    map.on('update', (changes) => {
      for (const { topic, entry } of changes) {
        const body = Buffer.from(json ? texts.encode(JSON.stringify(entry.value)) : entry.value).toString('base64');
        const type = json ? { 'content-type': 'application/json', schema: entry.headers.schema } : {};
        tell('message', { headers: { destination: topic, ...type }, body });
      }
    });
    map.ready().then(() => tell('receipt', { headers: { 'receipt-id': headers.receipt } }));
  },
  send({ headers: { destination, receipt, 'content-type': contentType, ...headers }, body }) {
    client.send(destination, new Uint8Array(Buffer.from(body, 'base64')), { contentType, headers }).then(
      ({ disposition }) => tell('receipt', { headers: { 'receipt-id': receipt, disposition } }),
      ({ code, message }) => {
        const [disposition] = message.match(/rejected-\w+/);
        tell('receipt', { headers: { 'receipt-id': receipt, disposition, result: code, reason: message } });
      },
    );
  },
  disconnect() {
    client.close();
  },
});
