/** Live values of a maxam gateway, in browsers and everywhere else with a WebSocket. */

export { Client, type ClientOptions, type ClientState, type Credential, type SendOptions } from "./client.ts";
export { MaxamError } from "./errors.ts";
export { readLongs } from "./json.ts";
export type { Change, Entry, LiveMap, MapEvents, MapState, Saved, ValuesOptions } from "./live-map.ts";
export type { Headers } from "./stomp.ts";
export { type Channel, type ChannelEvents, type Transport, webSocket } from "./transport.ts";
