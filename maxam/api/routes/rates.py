"""The route of rates: of the broker, of the busiest topics and of the busiest sessions."""

from typing import Final

from starlette.responses import Response

from maxam.api.answers import Answer
from maxam.api.description import NUMBER, SECONDS, TEXT, TIME, described, listed, record
from maxam.api.routing import Call, Description, RouteSpec
from maxam.avro.json.decoding import iso_time
from maxam.gateway.rates import HISTORY_SAMPLES, SAMPLE_S

_ACCEPTED: Final = described(NUMBER, "SENDs accepted")


@Description(
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
                "prefixItems": [TIME, _ACCEPTED, described(NUMBER, "MESSAGE frames")],
                "minItems": 3,
                "maxItems": 3,
            }
        ),
    ),
    text=f"`interval_s` is the time over which totals are averaged, 0 right after the start. `history` has a row for every {SAMPLE_S:g} s"
    f" of the last {HISTORY_SAMPLES * SAMPLE_S / 60:g} minutes, oldest first. A row has its end, and SENDs and MESSAGEs a second.",
)
async def _rates(call: Call) -> Response:
    rates = call.gateway.rates
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


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", "/v1/rates", "read", _rates),)
