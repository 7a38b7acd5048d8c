// The state from which recipe.mjs continues by `since`, in a file: the position, then the topics of which the program has a value.
// A program that stores values stores the position with them.
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';

export class Resume {
  #file;
  #show;
  #position;
  #held; // topics of which the program has a value
  #seen; // topics that came since SUBSCRIBE; undefined after the marker `complete`

  /** `show` is called with each topic that is gone. */
  constructor(file, show) {
    const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [''];
    this.#file = file;
    this.#show = show;
    this.#position = lines[0];
    this.#held = new Set(lines.slice(1));
  }

  /** Return headers for the next SUBSCRIBE. */
  begin() {
    this.#seen = new Set();
    return { markers: 'true', eager: 'true', ...(this.#position && { since: this.#position }) };
  }

  /** Record a change that the program is done with. */
  took(topic, hasValue) {
    this.#seen?.add(topic);
    if (hasValue) this.#held.add(topic);
    else this.#held.delete(topic);
  }

  /** Handle a MESSAGE that has no `ack`: a marker, or a notice about a topic. */
  notice({ destination: topic, kind, reason, result, position }) {
    if (topic !== '$marker') {
      if (kind === 'left') this.#drop(topic); // the right to receive it is gone
      else console.log(kind, topic, reason); // stale or fresh: the value stays
    } else if (kind === 'complete') {
      // Without a position that can be used, all values came: the program drops the topics that were not among them.
      if (!this.#position || result === 'since-unavailable') {
        for (const one of this.#held) if (!this.#seen.has(one)) this.#drop(one);
      }
      this.#seen = undefined;
    }
    if (position && !this.#seen) { // all that came before is handled
      this.#position = position;
      writeFileSync(`${this.#file}.new`, [position, ...[...this.#held].sort()].join('\n'), { mode: 0o600 });
      renameSync(`${this.#file}.new`, this.#file); // so that a crash leaves the old file or the new one
      console.log('position', position);
    }
  }

  #drop(topic) {
    this.#held.delete(topic);
    this.#show(topic);
  }
}
