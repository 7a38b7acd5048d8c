// Made by `maxam-admin schemas types`. Decimals, times, bytes and UUIDs are text, as JSON shows them.

export type Real = number | "NaN" | "Infinity" | "-Infinity";

/** An integer beyond 2^53 is text. */
export type Long = number | string;

/** What state one machine is in. */
export interface EGMStatus_v1 {
  /** The machine that this is about, and when it was so. */
  readonly from: EGMStateBase_v1;
  /** Present faults, oldest first; empty when there is none. */
  readonly faults: ReadonlyArray<Fault>;
  /** Every door that the machine reports. */
  readonly doors: ReadonlyArray<Door>;
  /** What is being played. */
  readonly gamePlay: GamePlay;
  /** Why the machine waits for an attendant; empty when it does not. */
  readonly lockUps: ReadonlyArray<LockUp>;
  /** What keeps the machine from being played; empty when it may be. */
  readonly disablingConditions: ReadonlyArray<DisablingCondition>;
  /** The link between site controller and machine. */
  readonly communications: Communications;
}

/** Which gaming machine (EGM) a message is about, where it stands, and when the state was read. The first field of every message. */
export interface EGMStateBase_v1 {
  /** The venue, as its licence names it. */
  readonly venueId: string;
  /** The site controller that reads the machine. */
  readonly scId: string;
  /** The site controller's interface board that the machine is wired to. */
  readonly interfaceId: string;
  /** The machine's identity (GMID). Equals the instance in the destination. */
  readonly egmElectronicId: string;
  /** The machine's manufacturer. */
  readonly manufacturerId: string;
  /** Where the machine stands, as the venue numbers its floor. */
  readonly floorPosition: string;
  /** When the state was read: milliseconds since 1970-01-01 UTC, by the site controller's clock. JSON has text such as '2026-11-21T12:00:00.000Z'. */
  readonly updatedTime: string;
}

/** Something that is wrong. */
export interface Fault {
  /** The machine's own number of the fault. */
  readonly code: number;
  /** What the machine calls it. */
  readonly text: string;
  /** When it was first seen: milliseconds since 1970-01-01 UTC. JSON has text such as '2026-11-21T12:00:00.000Z'. */
  readonly since: string;
}

/** One door of the machine. */
export interface Door {
  /** Which door. */
  readonly door: DoorName;
  /** Whether it is open. */
  readonly open: boolean;
  /** When it was last opened or closed: milliseconds since 1970-01-01 UTC. JSON has text such as '2026-11-21T12:00:00.000Z'. */
  readonly changed: string;
}

/** What is being played. */
export interface GamePlay {
  /** Whether somebody plays. */
  readonly state: GamePlayState;
  /** The selected game, `<theme>:<paytable>`; null when none is. */
  readonly gameId: null | string;
  /** Credit on the machine in the venue's currency. */
  readonly creditBalance: string;
}

/** The link between site controller and machine. */
export interface Communications {
  /** Whether the machine answers. */
  readonly online: boolean;
  /** When it last answered: milliseconds since 1970-01-01 UTC; null when never. JSON has text such as '2026-11-21T12:00:00.000Z'. */
  readonly lastHeard: null | string;
  /** Share of polls without a good answer in the last minute, 0.0 to 1.0. */
  readonly errorRate: Real;
}

export type DoorName = "UNKNOWN" | "MAIN" | "CASH_BOX" | "NOTE_ACCEPTOR" | "LOGIC_AREA" | "BELLY";

export type GamePlayState = "UNKNOWN" | "IDLE" | "CREDITED" | "PLAYING" | "FEATURE";

export type LockUp = "UNKNOWN" | "HAND_PAY" | "JACKPOT" | "TILT" | "AUDIT";

export type DisablingCondition = "UNKNOWN" | "HOST" | "VENUE" | "LICENCE" | "FAULT" | "CONFIGURATION";
