/** Errors with stable codes, and the decision which of them are final. */

import type { Headers } from "./stomp.ts";

/** Codes of ERROR frames that another attempt would only repeat. */
const FINAL = new Set([
  "no-common-version",
  "unknown-host",
  "bad-client-id",
  "bad-window",
  "bad-heart-beat",
  "bad-rejections",
  "bad-will",
  "unknown-client",
  "unauthenticated",
  "certificate-revoked",
  "certificate-expired",
  "certificate-not-trusted",
  "session-taken-over-by-a-newer-connection",
]);

/** Codes of ERROR frames to a SUBSCRIBE after which the same SUBSCRIBE may succeed. */
const SUBSCRIBE_TEMPORARY = new Set(["disk-full", "memory-low", "broker-is-stopping", "internal-error"]);

/** Codes that another ticket or token usually removes. */
export const CREDENTIAL_CODES: ReadonlySet<string> = new Set(["ticket-invalid", "token-invalid", "token-expired"]);

/** Every error of this package. */
export class MaxamError extends Error {
  override readonly name = "MaxamError";
  /** Stable code, such as `connection-lost` or `bad-selector`. Compare it, not the text. */
  readonly code: string;
  /** True if another attempt may succeed. The client makes it by itself. False: an action of a person is needed. */
  readonly temporary: boolean;
  /** The `receipt` of the frame that an ERROR refers to. */
  readonly receipt: string | undefined;

  constructor(
    code: string,
    message: string,
    options: { temporary?: boolean; receipt?: string | undefined; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.temporary = options.temporary ?? false;
    this.receipt = options.receipt;
  }
}

/** Return the error of an ERROR frame. Its code is the header `code`, or made of `message`. */
export function errorOfFrame(headers: Headers, body: Uint8Array): MaxamError {
  const message = headers.message ?? "ERROR without a message";
  const code = headers.code ?? message.toLowerCase().replaceAll(/[^a-z0-9/]+/g, "-");
  const detail = new TextDecoder().decode(body).trim();
  return new MaxamError(code, detail ? `${message}: ${detail}` : message, {
    temporary: !FINAL.has(code),
    receipt: headers["receipt-id"],
  });
}

/** Return true if an ERROR to a SUBSCRIBE ends this subscription for good. */
export function endsSubscription(error: MaxamError): boolean {
  return !SUBSCRIBE_TEMPORARY.has(error.code);
}

/** Return an error as the reason why something is closed for good. */
export function asFinal(error: MaxamError): MaxamError {
  return error.temporary ? new MaxamError(error.code, error.message, { receipt: error.receipt, cause: error }) : error;
}

/** Return the error of a connection that ended without an ERROR frame. */
export function lost(detail: string, cause?: unknown): MaxamError {
  return new MaxamError("connection-lost", detail, { temporary: true, cause });
}
