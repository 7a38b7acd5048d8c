"""The route that deletes many topics at once, each as a SEND of the caller's own principal."""

from typing import Final

from starlette.responses import Response

from maxam.api.answers import Rows
from maxam.api.bodies import read_body
from maxam.api.description import COUNT, TEXT, described, listed, nullable, one_of, record
from maxam.api.errands import send_all
from maxam.api.routing import Call, Description, RouteSpec
from maxam.records import REJECTION_RESULTS
from maxam.stomp.events import Send

DELETIONS_PATH: Final = "/v1/deletions"
TOPICS_MAX: Final = 200  # of one request, written like a page
ROWS_PER_SLICE: Final = 50
_DELETED: Final = "deleted"
_ABSENT: Final = "absent"
_WISH: Final = record("Deletions", destinations={**listed({"type": "string", "minLength": 1}), "maxItems": TOPICS_MAX})
_OUTCOME: Final = record(
    "Deletion",
    destination=TEXT,
    outcome=described(one_of(_DELETED, _ABSENT, *REJECTION_RESULTS), "`absent`: the topic held no value"),
    reason=nullable(TEXT),
)


@Description(
    "Delete the values of many topics",
    record("", deletions=listed(_OUTCOME), deleted=COUNT),
    body=_WISH,
    errors={400: "`invalid-request`: the body is not valid."},
    text="Each is a SEND of the caller's own principal, with an empty body. Answered after the commit. A rejected one stops no other.",
)
async def _delete_all(call: Call) -> Response:
    wanted = await read_body(call.request, _WISH)
    rights = call.view.policy.rights(call.caller.principal)
    names = list(dict.fromkeys(wanted["destinations"]))
    # Without the right the answer must not show whether there is a value.
    absent = {one for one in names if call.view.topic(one.encode()) is None and rights.may_send(one.encode())}
    sent = [one for one in names if one not in absent]
    answers = await send_all(call.gateway, call.caller, [Send(one.encode(), b"", (), b"delete", None) for one in sent])
    told = dict(zip(sent, answers, strict=True))
    rows = Rows("deletions")
    await rows.add_all(names, ROWS_PER_SLICE, lambda name: _row(name, told.get(name)))
    deleted = sum(one["disposition"] == "accepted" for one in answers)
    call.audit("done", f"{deleted} of {len(names)} topics deleted, {names[0]} to {names[-1]}" if names else "no topic")
    return rows.within(deleted=deleted)


def _row(destination: str, answer: dict[str, str] | None) -> dict[str, object]:
    if answer is None:
        return {"destination": destination, "outcome": _ABSENT, "reason": None}
    if answer["disposition"] == "accepted":
        return {"destination": destination, "outcome": _DELETED, "reason": None}
    return {"destination": destination, "outcome": answer["result"], "reason": answer.get("reason")}


ROUTES: Final[tuple[RouteSpec, ...]] = (("POST", DELETIONS_PATH, "write", _delete_all),)
