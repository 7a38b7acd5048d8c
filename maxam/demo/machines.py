"""Gaming machines that play by themselves: state in, messages of the example domain out. No I/O, no clock."""

import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, final

Value = dict[str, Any]  # a datum as fastavro takes it

PROTOCOLS: Final = ("Q", "S", "X")
THEMES: Final = ("Lucky Lyrebird", "Reef Riches", "Southern Cross", "Golden Wattle", "Billabong Blaze", "Opal Express")
NOTES_CENTS: Final = (500, 1000, 2000, 5000, 10_000)
BETS_CENTS: Final = (20, 50, 100, 250, 500)
S_CREDIT_CENTS: Final = 5
CREDITS_WRAP: Final = 100_000_000  # of protocol S's meters


@final
@dataclass(frozen=True, slots=True)
class Told:
    """One value to publish; None deletes the topic's value."""

    destination: str
    value: Value | None


@final
class Machine:
    """One machine on the floor. `switch_on` and `play` return the values to publish."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self._chance: Final = chance
        self._letter: Final = PROTOCOLS[number % len(PROTOCOLS)]
        self.gmid: Final = str(10_000 + number)
        self._floor_position: Final = f"{'ABCDEFGHJK'[number // 30 % 10]}{number % 30 + 1:02}"
        self._subject: Final = f"X/EGM.{self._letter}.{self.gmid}"
        self._theme = chance.choice(THEMES)
        self._state = "IDLE"
        self._credit = 0
        self._money_in = chance.randrange(1_000_000, 50_000_000)
        self._money_out = int(self._money_in * 0.88)
        self._turnover = self._money_in * 6
        self._wins = int(self._turnover * 0.9)
        self._games = self._turnover // 90
        self._notes: Final[dict[int, int]] = dict.fromkeys(NOTES_CENTS, 0)
        self._door_open = False
        self._door_changed_ms = 0
        self._door_openings = 0
        self._fault_since_ms: int | None = None
        self._hand_pay = False
        self._online = True
        self._last_heard_ms = 0
        self._steps = 0

    def switch_on(self, now_ms: int) -> list[Told]:
        """Return every value once."""
        self._last_heard_ms = self._door_changed_ms = now_ms
        return [self._reading(now_ms), self._status(now_ms), self._config(now_ms), self._game_config(now_ms)]

    def play(self, now_ms: int) -> list[Told]:
        """Let a moment pass. Return always a reading, and a status if it changed or was not sent for a while."""
        self._steps += 1
        before = (self._state, self._door_open, self._fault_since_ms, self._hand_pay, self._online)
        self._trouble(now_ms)
        if not self._online:
            told = []
        else:
            self._last_heard_ms = now_ms
            if not (self._door_open or self._hand_pay or self._fault_since_ms is not None):
                self._gamble()
            told = [self._reading(now_ms)]
        after = (self._state, self._door_open, self._fault_since_ms, self._hand_pay, self._online)
        if after != before or self._steps % 4 == 0:
            told.append(self._status(now_ms))
        if self._state == "IDLE" and self._likely(0.002):
            # the attendant sets up another game: the old one's topic goes, the new one's comes
            told.append(Told(self._game_destination, None))
            self._theme = self._chance.choice([theme for theme in THEMES if theme != self._theme])
            told += [self._config(now_ms), self._game_config(now_ms)]
        return told

    def _likely(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _trouble(self, now_ms: int) -> None:
        """Let things go wrong now and then, and be put right."""
        if self._likely(0.15 if self._door_open else 0.002):
            self._door_open = not self._door_open
            self._door_changed_ms = now_ms
            self._door_openings += self._door_open
        if self._hand_pay:
            self._hand_pay = not self._likely(0.1)
        if self._fault_since_ms is None:
            if self._likely(0.001):
                self._fault_since_ms = now_ms
        elif self._likely(0.1):
            self._fault_since_ms = None
        if self._likely(0.001 if self._online else 0.2):
            self._online = not self._online

    def _gamble(self) -> None:
        """Insert a note, bet, win or lose, or leave with what is left."""
        chance = self._chance
        if self._state == "IDLE":
            if self._likely(0.15):
                note = chance.choice(NOTES_CENTS)
                self._notes[note] += 1
                self._credit += note
                self._money_in += note
                self._state = "CREDITED"
            return
        bet = min(chance.choice(BETS_CENTS), self._credit)
        if bet == 0 or self._likely(0.02):
            self._money_out += self._credit
            self._credit = 0
            self._state = "IDLE"
            return
        won = bet * chance.choice((1, 2, 3, 10)) if self._likely(0.27) else 0
        if self._likely(0.001):
            won = bet * 500
            self._hand_pay = True
        self._turnover += bet
        self._wins += won
        self._games += 1
        self._credit += won - bet
        self._state = "FEATURE" if won >= 10 * bet else "PLAYING"

    @property
    def _game_id(self) -> str:
        return f"{self._theme.replace(' ', '-')}:{self._theme[0]}{len(self._theme)}"

    @property
    def _game_destination(self) -> str:
        return f"{self._subject}.Game.{self._game_id}.GameDetectedConfig"

    def _from(self, now_ms: int) -> Value:
        return {
            "venueId": "VENUE-7",
            "scId": "SC-1",
            "interfaceId": f"IF-{int(self.gmid) % 16:02}",
            "egmElectronicId": self.gmid,
            "manufacturerId": ("AGI", "BLW", "KON")[int(self.gmid) % 3],
            "floorPosition": self._floor_position,
            "updatedTime": now_ms,
        }

    def _reading(self, now_ms: int) -> Told:
        meters = {"Q": self._q_meters, "S": self._s_meters, "X": self._x_meters}[self._letter]()
        value = {
            "from": self._from(now_ms),
            "meters": (f"egm.{self._letter}Meters_v1", meters),
            "resetDateTime": None,
            "reason": "PERIODIC",
        }
        return Told(f"{self._subject}.EGMMeterReading", value)

    def _q_meters(self) -> Value:
        return {
            "credit": {"notesIn": self._money_in, "coinsIn": 0, "ticketsIn": 0, "transfersIn": 0},
            "debit": {"coinsOut": 0, "ticketsOut": self._money_out, "transfersOut": 0, "cancelledCredit": 0},
            "auxiliary": {"turnover": self._turnover, "totalWins": self._wins, "jackpotWins": 0},
            "nonMonetary": {
                "gamesPlayed": self._games,
                "gamesWon": self._games // 4,
                "doorOpenings": self._door_openings,
                "powerUps": 1,
            },
        }

    def _s_meters(self) -> Value:
        def credits_of(cents: int) -> int:
            return cents // S_CREDIT_CENTS % CREDITS_WRAP

        return {
            "creditValue": Decimal(S_CREDIT_CENTS) / 100,
            "credit": {"billsIn": credits_of(self._money_in), "otherIn": 0},
            "debit": {"paidOut": credits_of(self._money_out), "handPaid": 0},
            "auxiliary": {"played": credits_of(self._turnover), "won": credits_of(self._wins)},
            "nonMonetary": {
                "gamesPlayed": self._games,
                "billsByValue": {str(note // 100): count for note, count in self._notes.items()},
            },
        }

    def _x_meters(self) -> Value:
        return {
            "credit": {"totalIn": self._money_in, "notesIn": self._money_in},
            "debit": {"totalOut": self._money_out, "handPaid": None},
            "auxiliary": {"turnover": self._turnover, "totalWins": self._wins},
            "nonMonetary": {"gamesPlayed": self._games, "gamesSincePowerUp": None},
        }

    def _status(self, now_ms: int) -> Told:
        faults = []
        if self._fault_since_ms is not None:
            faults.append({"code": 41, "text": "note acceptor jammed", "since": self._fault_since_ms})
        value = {
            "from": self._from(now_ms),
            "faults": faults,
            "doors": [{"door": "MAIN", "open": self._door_open, "changed": self._door_changed_ms}],
            "gamePlay": {
                "state": self._state,
                "gameId": None if self._state == "IDLE" else self._game_id,
                "creditBalance": Decimal(self._credit).scaleb(-2),
            },
            "lockUps": ["HAND_PAY"] if self._hand_pay else [],
            "disablingConditions": ["FAULT"] if faults else [],
            "communications": {"online": self._online, "lastHeard": self._last_heard_ms, "errorRate": 0.0},
        }
        return Told(f"{self._subject}.EGMStatus", value)

    def _config(self, now_ms: int) -> Told:
        value = {
            "from": self._from(now_ms),
            "serialNumber": f"SN{self.gmid}",
            "jurisdiction": "QLD",
            "creditValue": Decimal(S_CREDIT_CENTS if self._letter == "S" else 1) / 100,
            "betLimit": Decimal(max(BETS_CENTS)).scaleb(-2),
            "firmware": [{"component": "platform", "version": "4.2.0", "sha1": self.gmid.encode() * 4}],
            "gameIds": [self._game_id],
        }
        return Told(f"{self._subject}.EGMDetectedConfig", value)

    def _game_config(self, now_ms: int) -> Told:
        value = {
            "from": self._from(now_ms),
            "gameId": self._game_id,
            "theme": self._theme,
            "rateReturn": 0.9,
            "payTable": self._game_id.partition(":")[2],
            "activeDenoms": [1, 2, 5, 10],
            "version": "1.7",
            "enabled": True,
        }
        return Told(self._game_destination, value)
