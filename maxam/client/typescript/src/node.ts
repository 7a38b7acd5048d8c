/** STOMP over TLS with a client certificate, for Node.js. */

import { type ConnectionOptions, connect } from "node:tls";
import type { MaxamError } from "./errors.ts";
import { lost } from "./errors.ts";
import type { Transport } from "./transport.ts";

/** Options of `tls.connect`. Clients trust the gateway by its chain, not by a DNS name, unless `checkServerIdentity` is given. */
export type TlsOptions = Pick<
  ConnectionOptions,
  "ca" | "cert" | "key" | "passphrase" | "pfx" | "servername" | "checkServerIdentity" | "minVersion"
>;

/**
 * Return a transport for addresses such as `stomp+tls://gateway.example:61614`.
 *
 * @param options A function is called before each connect, so that a renewed certificate is used.
 */
export function tls(options: TlsOptions | (() => TlsOptions)): Transport {
  return {
    heartBeatMs: 10_000,
    open(url, events) {
      const { hostname, port } = new URL(url);
      let failure: MaxamError | undefined;
      const socket = connect({
        checkServerIdentity: () => undefined,
        ...(typeof options === "function" ? options() : options),
        host: hostname.replace(/^\[(.*)\]$/, "$1"),
        port: Number(port || 61614),
      });
      socket.setNoDelay(true);
      socket.once("secureConnect", () => events.opened());
      socket.on("data", (bytes: Uint8Array) => events.received(bytes));
      socket.on("error", (error) => {
        failure = lost(`The connection to ${url} failed: ${error.message}.`, error);
      });
      socket.once("close", () => events.ended(failure ?? lost(`${url} closed the connection.`)));
      return {
        send: (bytes) => void socket.write(bytes),
        close: () => {
          socket.end();
          // A gateway that is gone does not answer the end.
          setTimeout(() => socket.destroy(), 1000).unref();
        },
      };
    },
  };
}
