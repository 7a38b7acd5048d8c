"""Routes of rejected SENDs, which are kept in memory for operators."""

from base64 import b64encode
from collections import Counter
from http import HTTPStatus
from typing import Final

import trio
from starlette.responses import Response

from maxam.api.answers import DISPOSITION_STATUS, Answer, ApiError, Rows, require_accepted
from maxam.api.description import (
    BASE64,
    COUNT,
    FLAG,
    HEX,
    TEXT,
    TIME,
    WHOLE,
    described,
    extended,
    listed,
    nullable,
    one_of,
    page,
    record,
)
from maxam.api.errands import resubmit
from maxam.api.parameters import AFTER_NUMBER, LIMIT, choice, flag, glob, moment, text
from maxam.api.routing import PII, Call, Description, RouteSpec, not_found, record_personal
from maxam.api.topic_schemas import HEADERS
from maxam.api.view import View
from maxam.avro.json.decoding import iso_time
from maxam.avro.personal import marks_personal
from maxam.broker.broker import Broker
from maxam.gateway.quarantine import BODY_GIVEN_UP, Quarantined
from maxam.gateway.rejects import BODY_KEPT, BODY_PRIVATE, BODY_UNAUTHORISED, body_state_by_rule
from maxam.records import REJECTION_RESULTS

ROWS_PER_SLICE: Final = 100
SUMS_MAX: Final = 100
LOOKED_AT_PER_SLICE: Final = 500  # before the event loop runs other tasks: about 1 ms
BODY_WITHHELD: Final = "withheld"  # kept, but the caller may not receive it
BODY_PERSONAL: Final = "personal"  # kept, but the caller wants no personal fields
_WHY_NO_BODY: Final = {
    BODY_UNAUTHORISED: "the body of a SEND without the right is never kept, nor that of one to a malformed destination",
    BODY_PRIVATE: "the rule of its destination has store_rejected_bodies = false",
    BODY_GIVEN_UP: "there was no room for it in the quarantine; the journal's folder `rejected` may have it",
    BODY_WITHHELD: "only callers who may receive the destination see its bodies",
    BODY_PERSONAL: "the schema of its destination marks fields as personal, and `pii` is false",
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
_PRINCIPAL: Final = text("principal", "only those of this principal")
_DESTINATION: Final = glob("destination", "only those whose destination matches this glob")
_RESULT: Final = choice("result", "only those with this code", tuple(REJECTION_RESULTS), None)
_SINCE: Final = moment("since", "only those since this time")
_FORCE: Final = flag("force", "send it although the topic has changed since")
_SUM: Final = record(
    "RejectSum",
    principal=TEXT,
    result=one_of(*REJECTION_RESULTS),
    count=COUNT,
    last_at=TIME,
    destination=described(TEXT, "that of the newest one, as the reason"),
    reason=TEXT,
)
_NO_REJECT: Final = {404: "`not-found`: there is none, or it made room for newer ones."}


@Description(
    "Rejected SENDs in memory, the newest first",
    page("rejects", REJECT, kept=COUNT, forgotten=COUNT, since=TIME),
    (_PRINCIPAL, _DESTINATION, _RESULT, _SINCE, AFTER_NUMBER, LIMIT),
)
async def _rejects(call: Call) -> Response:
    quarantine = call.gateway.quarantine

    async def read(cursor: int | None, most: int) -> tuple[list[dict[str, object]], int | None]:
        found: list[dict[str, object]] = []
        for looked_at, reject in enumerate(quarantine.before(cursor)):
            if looked_at == LOOKED_AT_PER_SLICE or len(found) == most:
                return found, cursor
            cursor = reject.number
            if reject.rejected_at_us < (call[_SINCE] or 0):
                break  # all others are older
            if _is_wanted(call, reject):
                found.append(_row(call, reject))
        return found, None

    rows = Rows("rejects")
    following = await rows.fill(call[LIMIT], ROWS_PER_SLICE, call[AFTER_NUMBER], read)
    return rows.answer(
        following,
        kept=len(quarantine),
        forgotten=quarantine.forgotten,
        since=iso_time(call.gateway.started_at_us),
    )


def _is_wanted(call: Call, reject: Quarantined) -> bool:
    """Return True if the query matches a reject, its time apart."""
    wanted = call[_DESTINATION]
    return (
        call[_PRINCIPAL] in (None, reject.identity.principal)
        and call[_RESULT] in (None, reject.rejection.result)
        and (wanted is None or wanted.matches(reject.destination.decode()))
    )


@Description(
    "Numbers of the rejected SENDs in memory by principal and result, the largest first",
    record(sums=listed(_SUM), count=described(COUNT, "over all sums"), kept=COUNT),
    (_PRINCIPAL, _DESTINATION, _RESULT, _SINCE),
    text=f"Of more than {SUMS_MAX} sums only the largest are listed.",
)
async def _sums(call: Call) -> Response:
    newest: dict[tuple[str, str], Quarantined] = {}
    counts: Counter[tuple[str, str]] = Counter()
    # One copy of the references: records that make room meanwhile are counted.
    for looked_at, reject in enumerate(list(call.gateway.quarantine.before(None)), 1):
        if looked_at % LOOKED_AT_PER_SLICE == 0:
            await trio.lowlevel.checkpoint()
        if reject.rejected_at_us < (call[_SINCE] or 0):
            break  # all others are older
        if _is_wanted(call, reject):
            kind = (reject.identity.principal, reject.rejection.result)
            newest.setdefault(kind, reject)
            counts[kind] += 1
    rows: list[dict[str, object]] = [
        {
            "principal": principal,
            "result": result,
            "count": count,
            "last_at": iso_time(last.rejected_at_us),
            "destination": last.destination.decode(),
            "reason": last.rejection.reason,
        }
        for (principal, result), count in counts.most_common(SUMS_MAX)
        for last in [newest[principal, result]]
    ]
    return Answer({"sums": rows, "count": counts.total(), "kept": len(call.gateway.quarantine)})


@Description(
    "One rejected SEND, with its body if the caller may receive it",
    extended(
        REJECT,
        "Reject",
        ("headers", "body", "problem"),
        resubmissions=listed(
            record("Resubmission", ("result", "reason"), by=TEXT, at=TIME, disposition=TEXT, result=TEXT, reason=TEXT)
        ),
        body_sha256=HEX,
        headers=HEADERS,
        body=BASE64,
        problem=described(TEXT, "why there is no body"),
    ),
    (PII,),
    errors=_NO_REJECT,
    text="A rejected body cannot be decoded. If its schema marks personal fields, no part of it is shown without `pii`.",
)
async def _reject(call: Call) -> Response:
    record = _present(call)
    row = _row(call, record)
    row["resubmissions"] = [
        {"by": principal, "at": iso_time(at_us), **_answered(answer)} for principal, at_us, answer in record.resubmitted
    ]
    state = _body_state(call.view, record)
    if state == BODY_KEPT and not call.may_receive(record.destination):
        state = BODY_WITHHELD
    personal = state == BODY_KEPT and _may_be_personal(call.view, record)
    if personal and call[PII]:
        record_personal(call, record.destination.decode())
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


@Description(
    "Send a rejected SEND again, as the caller",
    record(
        "Resubmitted",
        ("result", "reason"),
        id=TEXT,
        destination=TEXT,
        disposition=one_of("accepted"),
        result=TEXT,
        reason=TEXT,
    ),
    (_FORCE,),
    errors=_NO_REJECT
    | {
        403: "`withheld`; `rejected-unauthorised` in the RECEIPT.",
        409: "`topic-changed`, `body-not-kept`.",
        422: "`rejected-invalid` in the RECEIPT.",
        503: "`rejected-unavailable` in the RECEIPT.",
    },
)
async def _resubmit(call: Call) -> Response:
    record = _present(call)
    state = _body_state(call.view, record)
    if state != BODY_KEPT:
        raise ApiError(HTTPStatus.CONFLICT, "body-not-kept", _WHY_NO_BODY[state])
    if not call.may_receive(record.destination):
        raise ApiError(HTTPStatus.FORBIDDEN, BODY_WITHHELD, f"{_WHY_NO_BODY[BODY_WITHHELD]}, and may send them again")
    if not call[_FORCE] and (record.rejection.result == "conflict" or _changed_since(call.gateway.broker, record)):
        raise ApiError(
            HTTPStatus.CONFLICT,
            "topic-changed",
            f"{record.destination.decode()} has been changed since; what was rejected is older than its value, and takes its place "
            "only with force",
        )
    answer = await resubmit(call.gateway, call.caller, record)
    require_accepted(answer)
    return Answer(
        {"id": call.gateway.quarantine.name(record), "destination": record.destination.decode(), **_answered(answer)}
    )


def _body_state(view: View, record: Quarantined) -> str:
    """Return whether there is a body to show. A rule that forbids keeping it now also covers bodies that were kept before."""
    state = record.body_state
    return body_state_by_rule(record.destination, view.registry) if state == BODY_KEPT else state


def _may_be_personal(view: View, record: Quarantined) -> bool:
    """Return True if a version that the body might be of marks personal fields, or if its type is gone and this is unknown."""
    registry = view.registry
    rule = registry.rule_for(record.destination.decode())
    name = record.rejection.schema or ("" if rule is None else rule.schema)
    if not name:
        return False
    versions = [*registry.versions(name), *registry.candidates(name)]
    return not versions or any(marks_personal(version.schema.text) for version in versions)


def _answered(answer: dict[str, str]) -> dict[str, str]:
    return {key: answer[key] for key in ("disposition", "result", "reason") if key in answer}


def _present(call: Call) -> Quarantined:
    identifier = call.segment("id")
    record = call.gateway.quarantine.get(identifier)
    if record is None:
        raise not_found(
            f"there is no reject {identifier}: it made room for newer ones, or is of an earlier run of the gateway, or there was none."
            " The journal's folder `rejected` may have it"
        )
    return record


def _changed_since(broker: Broker, record: Quarantined) -> bool:
    """Return True if a topic has been changed, or a change of it appended, since a SEND to it was rejected."""
    newest = broker.newest(record.destination)
    if newest:
        return newest > record.head
    topic = broker.store.topics.get(record.destination)
    return record.revision > 0 or (topic is not None and topic.change.revision > record.head)


def _row(call: Call, record: Quarantined) -> dict[str, object]:
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
        "id": call.gateway.quarantine.name(record),
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
        "body_state": _body_state(call.view, record),
        "topic_changed": _changed_since(call.gateway.broker, record),
        "resubmitted": len(record.resubmitted),
    }


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/v1/rejects", "read", _rejects),
    ("GET", "/v1/reject-sums", "read", _sums),
    ("GET", "/v1/rejects/{id}", "read", _reject),
    ("POST", "/v1/rejects/{id}/resubmit", "write", _resubmit),
)
