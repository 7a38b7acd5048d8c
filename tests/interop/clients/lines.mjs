// The line protocol of third_party.py, for the clients that run in Node.js.
import { createInterface } from 'node:readline';
import { readFileSync } from 'node:fs';
import { WebSocket } from 'ws';

export function tell(event, rest = {}) {
  process.stdout.write(JSON.stringify({ event, ...rest }) + '\n');
}

export function credentials(command) {
  return {
    host: '127.0.0.1',
    port: command.port,
    ca: readFileSync(command.ca),
    cert: readFileSync(command.certificate),
    key: readFileSync(command.key),
  };
}

// Have the WebSockets of this process trust an authority. A browser has its own WebSocket and its own authorities.
export function trust(file) {
  const ca = readFileSync(file);
  globalThis.WebSocket = class extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols, { ca });
    }
  };
}

export const identity = (headers) => `${headers.subscription} ${headers['message-id']}`;

export function serve(actions) {
  if (process.argv.includes('--probe')) process.exit(0); // the imports worked
  const lines = createInterface({ input: process.stdin });
  lines.on('line', (line) => {
    const command = JSON.parse(line);
    actions[command.do](command);
  });
  lines.on('close', () => process.exit(0));
}
