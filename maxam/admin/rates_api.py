"""The route of rates: how much is going on, where, and by whom."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from maxam.admin.answers import Answer, RouteSpec
from maxam.admin.description import NUMBER, SECONDS, TEXT, TIME, described, listed, record
from maxam.admin.values import iso_time
from maxam.admin.view import View
from maxam.gateway.rates import HISTORY_SAMPLES, SAMPLE_S
from maxam.records import Identity

RATES_PATH: Final = "/v1/rates"
_ACCEPTED: Final = {"type": "number", "description": "SENDs accepted"}


@described(
    "Rates of the last seconds and minutes, the topics that change most, the sessions that send and receive most",
    record(
        "Rates",
        as_of=TIME,
        interval_s=SECONDS,
        sends_per_s=_ACCEPTED,
        messages_per_s=NUMBER,
        acks_per_s=NUMBER,
        rejects_per_s=NUMBER,
        hot_topics=listed(record("HotTopic", destination=TEXT, updates_per_s=NUMBER)),
        busy_sessions=listed(
            record("BusySession", principal=TEXT, client_id=TEXT, sends_per_s=NUMBER, messages_per_s=NUMBER)
        ),
        history=listed(
            {
                "type": "array",
                "prefixItems": [TIME, _ACCEPTED, {"type": "number", "description": "MESSAGE frames"}],
                "minItems": 3,
                "maxItems": 3,
            }
        ),
    ),
    text=f"`interval_s` is the time over which totals are averaged; 0 right after the start. `history` has a row for every {SAMPLE_S:g} s"
    f" of the last {HISTORY_SAMPLES * SAMPLE_S / 60:g} minutes, oldest first: when it ends, and SENDs and MESSAGEs a second in it.",
)
async def _rates(view: View, _request: Request, _caller: Identity) -> Response:
    rates = view.rates
    totals = rates.totals
    return Answer(
        {
            "as_of": iso_time(rates.as_of_us),
            "interval_s": round(totals.interval_s, 3),
            "sends_per_s": round(totals.sends, 1),
            "messages_per_s": round(totals.messages, 1),
            "acks_per_s": round(totals.acks, 1),
            "rejects_per_s": round(totals.rejects, 1),
            "hot_topics": [
                {"destination": topic.destination.decode(), "updates_per_s": round(topic.updates_per_s, 2)}
                for topic in rates.hot_topics
            ],
            "busy_sessions": [
                {
                    "principal": session.principal,
                    "client_id": session.client_id,
                    "sends_per_s": round(session.sends_per_s, 1),
                    "messages_per_s": round(session.messages_per_s, 1),
                }
                for session in rates.busy_sessions
            ],
            "history": [
                [iso_time(at_us), round(sends, 1), round(messages, 1)] for at_us, sends, messages in rates.history
            ],
        }
    )


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", RATES_PATH, "read", _rates),)
