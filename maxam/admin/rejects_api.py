"""Routes of rejected SENDs, which are kept in memory for operators, and of the trials of candidate versions."""

from base64 import b64encode
from datetime import datetime
from http import HTTPStatus
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import (
    DISPOSITION_STATUS,
    Answer,
    ApiError,
    RouteSpec,
    Rows,
    flag_of,
    glob_of,
    limit_of,
    require_accepted,
)
from maxam.admin.description import (
    AFTER_NUMBER,
    BASE64,
    COUNT,
    FLAG,
    HEX,
    LIMIT,
    NUMBER,
    TEXT,
    TIME,
    WHOLE,
    Parameter,
    described,
    extended,
    flag,
    listed,
    nullable,
    one_of,
    page,
    record,
)
from maxam.admin.personal import PII, tell_given, wants_personal
from maxam.admin.values import iso_time, marks_personal
from maxam.admin.view import View
from maxam.gateway.quarantine import BODY_GIVEN_UP, Quarantined
from maxam.gateway.rejects import BODY_KEPT, BODY_PRIVATE, BODY_UNAUTHORISED, body_state_by_rule
from maxam.gateway.shadow import Reason, Tally, Trials
from maxam.records import REJECTION_RESULTS, Identity

REJECTS_PATH: Final = "/v1/rejects"
ROWS_PER_SLICE: Final = 100
LOOKED_AT_PER_SLICE: Final = 500  # before the event loop has its turn: about 1 ms
BODY_WITHHELD: Final = "withheld"  # it is kept, but not for this caller
BODY_PERSONAL: Final = "personal"  # nor is that one for who wants no personal fields
TRIAL_ROWS_MAX: Final = 100  # of principals and of reasons, each, that one rule shows: those with most
_DIGITS_MAX: Final = 18
_WHY_NO_BODY: Final = {
    BODY_UNAUTHORISED: "the body of a SEND without right is never kept, nor that to a malformed destination, to which nobody has one",
    BODY_PRIVATE: "the rule of its destination says store_rejected_bodies = false",
    BODY_GIVEN_UP: "there was no room for it in the quarantine; the journal's folder `rejected` may have it",
    BODY_WITHHELD: "only who may receive the destination sees what is sent there",
    BODY_PERSONAL: "the schema of its destination marks fields as personal, and it was asked for without them",
}


REJECT: Final = record(
    "RejectRow",
    id=TEXT,
    rejected_at=TIME,
    principal=TEXT,
    fingerprint=TEXT,
    destination=TEXT,
    disposition=one_of(*DISPOSITION_STATUS),
    result=one_of(*REJECTION_RESULTS),
    reason=TEXT,
    schema=TEXT,
    schema_version=TEXT,
    fault=nullable(
        record(
            "Fault",
            path=TEXT,
            expected=TEXT,
            found=TEXT,
            offset=nullable(COUNT),
            item=nullable(COUNT),
            item_key=nullable(WHOLE),
        )
    ),
    body_bytes=COUNT,
    body_state=one_of(BODY_KEPT, *_WHY_NO_BODY),
    topic_changed=FLAG,
    resubmitted=COUNT,
)
_NO_REJECT: Final = {404: "`not-found`: there is none, or it made room for newer ones."}


@described(
    "The last rejected SENDs, the newest first",
    page("rejects", REJECT, kept=COUNT, forgotten=COUNT, since=TIME),
    (
        Parameter("principal", TEXT, "of this one only"),
        Parameter("destination", TEXT, "a glob"),
        Parameter("result", one_of(*REJECTION_RESULTS), "with this code only"),
        Parameter("since", TIME, "not before"),
        AFTER_NUMBER,
        LIMIT,
    ),
    errors={400: "`invalid-glob`."},
)
async def _rejects(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    wanted = _Filter(view, request)
    cursor = _cursor(request)
    rows = Rows("rejects")
    more = True
    while more and len(rows) < limit:
        more = False
        found: list[dict[str, object]] = []
        for looked_at, reject in enumerate(view.quarantine.before(cursor)):
            if looked_at == LOOKED_AT_PER_SLICE or len(found) == min(limit - len(rows), ROWS_PER_SLICE):
                more = True
                break
            cursor = reject.number
            if wanted.since_us is not None and reject.rejected_at_us < wanted.since_us:
                break  # all others are older
            if wanted.matches(reject):
                found.append(_row(view, reject))
        rows.add(found)
        await trio.lowlevel.checkpoint()
    quarantine = view.quarantine
    return rows.answer(
        str(cursor) if more else None,
        kept=len(quarantine),
        forgotten=quarantine.forgotten,
        since=iso_time(view.started_at_us()),
    )


@described(
    "One rejected SEND, with its body as far as may be",
    extended(
        REJECT,
        "Reject",
        ("headers", "body", "problem"),
        resubmissions=listed(
            record("Resubmission", ("result", "reason"), by=TEXT, at=TIME, disposition=TEXT, result=TEXT, reason=TEXT)
        ),
        body_sha256=HEX,
        headers=listed({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}),
        body=BASE64,
        problem={"type": "string", "description": "why there is no body"},
    ),
    (PII,),
    errors=_NO_REJECT,
    text="A body that was rejected cannot be decoded, so of one whose schema marks fields as personal nothing is shown without them.",
)
async def _reject(view: View, request: Request, caller: Identity) -> Response:
    with_pii = wants_personal(request)
    record = _present(view, request)
    row = _row(view, record)
    row["resubmissions"] = [
        {"by": principal, "at": iso_time(at_us), **_answered(answer)} for principal, at_us, answer in record.resubmitted
    ]
    state = _body_state(view, record)
    if state == BODY_KEPT and not view.may_receive(caller.principal, record.destination):
        state = BODY_WITHHELD
    personal = state == BODY_KEPT and _may_be_personal(view, record)
    if personal and with_pii:
        tell_given(view, request, caller, record.destination.decode())
    elif personal:
        state = BODY_PERSONAL
    row["body_state"] = state
    row["body_sha256"] = record.digest()
    if state in {BODY_KEPT, BODY_PERSONAL}:
        row["headers"] = [[name.decode(), value.decode()] for name, value in record.headers]
    if state == BODY_KEPT:
        row["body"] = b64encode(record.body).decode()
    else:
        row["problem"] = _WHY_NO_BODY[state]
    return Answer(row)


@described(
    "Send a rejected SEND again, as one of the caller's principal",
    record(
        "Resubmitted",
        ("result", "reason"),
        id=TEXT,
        destination=TEXT,
        disposition=one_of("accepted"),
        result=TEXT,
        reason=TEXT,
    ),
    (flag("force", "though the topic has been changed since"),),
    errors=_NO_REJECT
    | {
        403: "`withheld`; `rejected-unauthorised` in the RECEIPT.",
        409: "`topic-changed`, `body-not-kept`.",
        422: "`rejected-invalid` in the RECEIPT.",
        503: "`rejected-unavailable` in the RECEIPT.",
    },
)
async def _resubmit(view: View, request: Request, caller: Identity) -> Response:
    record = _present(view, request)
    force = flag_of(request, "force")
    state = _body_state(view, record)
    if state != BODY_KEPT:
        raise ApiError(HTTPStatus.CONFLICT, "body-not-kept", _WHY_NO_BODY[state])
    if not view.may_receive(caller.principal, record.destination):
        raise ApiError(
            HTTPStatus.FORBIDDEN, BODY_WITHHELD, f"{_WHY_NO_BODY[BODY_WITHHELD]}, and sends again what was sent there"
        )
    if not force and (record.rejection.result == "conflict" or view.changed_since(record)):
        raise ApiError(
            HTTPStatus.CONFLICT,
            "topic-changed",
            f"{record.destination.decode()} has been changed since; what was rejected is older than its value, and takes its place "
            "only with force",
        )
    answer = await view.resubmit(caller, record)
    require_accepted(answer)
    return Answer({"id": view.quarantine.name(record), "destination": record.destination.decode(), **_answered(answer)})


def _body_state(view: View, record: Quarantined) -> str:
    """Say whether there is a body to show: a rule that forbids keeping it now counts for what was kept before it, too."""
    state = record.body_state
    return body_state_by_rule(record.destination, view.registry) if state == BODY_KEPT else state


def _may_be_personal(view: View, record: Quarantined) -> bool:
    """Say whether any version that the body might be meant for marks fields as personal; nobody can tell of a type that is gone."""
    registry = view.registry
    rule = registry.rule_for(record.destination.decode())
    name = record.rejection.schema or ("" if rule is None else rule.schema)
    if not name:
        return False
    versions = [*registry.versions(name), *registry.candidates(name)]
    return not versions or any(marks_personal(version.schema.text) for version in versions)


def _answered(answer: dict[str, str]) -> dict[str, str]:
    return {key: answer[key] for key in ("disposition", "result", "reason") if key in answer}


def _present(view: View, request: Request) -> Quarantined:
    identifier: str = request.path_params["id"]
    record = view.quarantine.get(identifier)
    if record is None:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            "not-found",
            f"there is no reject {identifier}: it made room for newer ones, or is of an earlier run of the gateway, or there was none;"
            " the journal's folder `rejected` may have it",
        )
    return record


class _Filter:
    """Which rejects a listing asks for."""

    def __init__(self, view: View, request: Request) -> None:
        parameters = request.query_params
        self._principal: Final = parameters.get("principal")
        self._result: Final = _result(parameters.get("result"))
        glob = parameters.get("destination")
        self._glob: Final = None if glob is None else glob_of(view, glob)
        self.since_us: Final = _moment(parameters.get("since"))

    def matches(self, record: Quarantined) -> bool:
        """Say whether a reject is asked for, its time apart."""
        return (
            (self._principal is None or record.identity.principal == self._principal)
            and (self._result is None or record.rejection.result == self._result)
            and (self._glob is None or self._glob.matches(record.destination.decode()))
        )


def _result(text: str | None) -> str | None:
    if text is not None and text not in REJECTION_RESULTS:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "invalid-parameter", f"result must be one of {', '.join(REJECTION_RESULTS)}"
        )
    return text


def _moment(text: str | None) -> int | None:
    if text is None:
        return None
    since_us = 0
    try:
        moment = datetime.fromisoformat(text)
        since_us = int(moment.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", "since must be a time such as 2026-11-21T09:30:00Z")
    return since_us


def _cursor(request: Request) -> int | None:
    text = request.query_params.get("after")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ApiError(HTTPStatus.BAD_REQUEST, "invalid-parameter", "after must be the `next` of the page before")
    return int(text)


def _row(view: View, record: Quarantined) -> dict[str, object]:
    rejection = record.rejection
    fault: dict[str, object] | None = None
    if rejection.expected:
        fault = {
            "path": rejection.path,
            "expected": rejection.expected,
            "found": rejection.found,
            "offset": rejection.offset if rejection.offset >= 0 else None,
            "item": rejection.item if rejection.item >= 0 else None,
            "item_key": rejection.item_key if rejection.item >= 0 else None,
        }
    return {
        "id": view.quarantine.name(record),
        "rejected_at": iso_time(record.rejected_at_us),
        "principal": record.identity.principal,
        "fingerprint": record.identity.fingerprint,
        "destination": record.destination.decode(),
        "disposition": record.disposition.decode(),
        "result": rejection.result,
        "reason": rejection.reason,
        "schema": rejection.schema,
        "schema_version": rejection.schema_version,
        "fault": fault,
        "body_bytes": record.body_bytes,
        "body_state": _body_state(view, record),
        "topic_changed": view.changed_since(record),
        "resubmitted": len(record.resubmitted),
    }


# Trials.


_TALLY: Final = dict.fromkeys(("seen", "tried", "fits", "older", "rejected", "mended"), COUNT)


@described(
    "What candidate versions would have made of live traffic, rule by rule",
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
async def _shadow(view: View, request: Request, _caller: Identity) -> Response:
    limit = limit_of(request)
    begin = _cursor(request) or 0
    trials = view.shadows.trials()
    rows: list[dict[str, object]] = []
    for one in trials[begin : begin + limit]:
        rows.append(_trials_row(one))
        await trio.lowlevel.checkpoint()
    end = begin + limit
    return Answer(
        {
            "rules": rows,
            "next": str(end) if end < len(trials) else None,
            "since": iso_time(view.started_at_us()),
        }
    )


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


def _tally_row(tally: Tally) -> dict[str, int]:
    return {
        "seen": tally.seen,
        "tried": tally.tried,
        "fits": tally.fits,
        "older": tally.older,
        "rejected": tally.rejected,
        "mended": tally.mended,
    }


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


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", REJECTS_PATH, "read", _rejects),
    ("GET", REJECTS_PATH + "/{id}", "read", _reject),
    ("POST", REJECTS_PATH + "/{id}/resubmit", "write", _resubmit),
    ("GET", "/v1/shadow", "read", _shadow),
)
