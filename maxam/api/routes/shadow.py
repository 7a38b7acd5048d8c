"""The route of trials: results of candidate versions on live traffic."""

from typing import Final

from starlette.responses import Response

from maxam.api.answers import Rows
from maxam.api.description import COUNT, NUMBER, TEXT, TIME, listed, nullable, page, record
from maxam.api.parameters import AFTER_NUMBER, LIMIT
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.gateway.shadow import Reason, Tally, Trials

TRIAL_ROWS_MAX: Final = 100  # of principals and of reasons, each, that one rule shows: those with most
_COUNTS: Final = ("seen", "tried", "fits", "older", "rejected", "newly_accepted")
FORMER: Final = "mended"  # name of `newly_accepted` until 0.2.0, kept for one release
_TALLY: Final = dict.fromkeys((*_COUNTS, FORMER), COUNT)


@Description(
    "Trials of candidate versions on live traffic, by rule",
    page(
        "rules",
        record(
            "Trials",
            destination=TEXT,
            encoding=TEXT,
            schema=TEXT,
            candidate=TEXT,
            file=TEXT,
            judges=listed(TEXT),
            **_TALLY,
            rejected_share=nullable(NUMBER),
            principals_told=COUNT,
            principals=listed(record("TrialsOfPrincipal", principal=TEXT, **_TALLY)),
            reasons_told=COUNT,
            reasons=listed(
                record(
                    "TrialReason",
                    principal=TEXT,
                    problem=TEXT,
                    count=COUNT,
                    first_at=TIME,
                    example=record("TrialExample", at=TIME, destination=TEXT, reason=TEXT),
                )
            ),
        ),
        since=TIME,
    ),
    (AFTER_NUMBER, LIMIT),
)
async def _shadow(call: Call) -> Response:
    trials = call.gateway.shadows.trials()

    async def read(cursor: int | None, most: int) -> tuple[list[dict[str, object]], int | None]:
        begin = cursor or 0
        end = begin + most
        return [_trials_row(one) for one in trials[begin:end]], end if end < len(trials) else None

    rows = Rows("rules")
    following = await rows.fill(call[LIMIT], 2, call[AFTER_NUMBER], read)
    return rows.answer(following, since=iso_time(call.gateway.started_at_us))


def _trials_row(trials: Trials) -> dict[str, object]:
    rule = trials.rule
    principals = sorted(trials.principals.items(), key=lambda item: (-item[1].rejected, -item[1].seen, item[0]))
    reasons = sorted(trials.reasons.values(), key=lambda reason: (-reason.count, reason.principal, reason.problem))
    return {
        "destination": rule.glob.text,
        "encoding": rule.encoding,
        "schema": rule.schema,
        "candidate": trials.candidate.minor,
        "file": trials.candidate.path,
        "judges": rule.minors,
        **_tally_row(trials.total),
        "rejected_share": trials.rejected_share(),
        "principals_told": len(principals),
        "principals": [{"principal": name, **_tally_row(tally)} for name, tally in principals[:TRIAL_ROWS_MAX]],
        "reasons_told": len(reasons),
        "reasons": [_reason_row(reason) for reason in reasons[:TRIAL_ROWS_MAX]],
    }


def _tally_row(tally: Tally) -> dict[str, object]:
    return {name: getattr(tally, name) for name in _COUNTS} | {FORMER: tally.newly_accepted}


def _reason_row(reason: Reason) -> dict[str, object]:
    return {
        "principal": reason.principal,
        "problem": reason.problem,
        "count": reason.count,
        "first_at": iso_time(reason.first_at_us),
        "example": {
            "at": iso_time(reason.at_us),
            "destination": reason.destination.decode(),
            "reason": reason.reason,
        },
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/shadow", "read", _shadow),)
