/** Two components under StrictMode over a scripted gateway, for a browser. `window.page` is for its test. */

import { createElement, StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { Client } from "../src/index.ts";
import { useClientState, useValues } from "../src/react.ts";
import { ScriptedGateway, SimulatedClock } from "./simulation.ts";

globalThis.setImmediate ??= ((action: () => void) => setTimeout(action, 0)) as unknown as typeof setImmediate;

const clock = new SimulatedClock();
const gateway = new ScriptedGateway(clock);
const client = new Client({ url: "wss://gateway.test/stomp", transport: gateway, clock });
let renders = 0;
let show = (_shown: boolean) => {};

function Table({ id }: { id: string }) {
  const { entries, state } = useValues<number>(client, "X/*", { minIntervalMs: 500 });
  const connection = useClientState(client);
  renders += 1;
  const values = [...entries.values()].map(({ topic, value }) => `${topic}=${value}`);
  return createElement("p", { id }, `${connection.status} ${state.status} ${values.join(" ")}`);
}

function Page() {
  const [shown, setShown] = useState(true);
  show = setShown;
  return shown ? [createElement(Table, { id: "one", key: 1 }), createElement(Table, { id: "two", key: 2 })] : null;
}

const root = document.body.appendChild(document.createElement("main"));
createRoot(root).render(createElement(StrictMode, null, createElement(Page)));

/** Let simulated time pass with the real one. */
async function run(): Promise<void> {
  for (;;) {
    await clock.pass(10);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
void run();

Object.assign(window, {
  page: {
    publish: (count: number) => {
      for (let n = 1; n <= count; n += 1) gateway.publish("X/1", n);
    },
    count: (command: string) => gateway.count(command),
    text: (id: string) => document.getElementById(id)?.textContent ?? "",
    renders: () => renders,
    show: (shown: boolean) => show(shown),
  },
});
