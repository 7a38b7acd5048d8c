"""A client that sends none of the headers that refine a subscription receives what it received before they existed."""

from pathlib import Path

import pytest

from tests.support.recorded_sessions import Recording, differences, load

FIXTURES = Path(__file__).parents[1] / "fixtures"
# Five random sessions of 341b11f had other bytes with the larger first flight of 0.2.0, and with that alone. They were recorded again.
FILES = sorted(FIXTURES.glob("sessions_*.json.xz"))
# Texts for people that were reworded on purpose since the recording, with the words of today. They are in bodies of ERRORs and in the
# header `reason` of a RECEIPT. Every other byte is as it was.
REWORDED = [
    (
        r"has connected with the client-id (\S+), and the newest has the session",
        r"has the client-id \1 now. The newest has the session",
    ),
    (r"the policy \w+ no principal for the certificate", "the policy has no principal for the certificate"),
    (
        r"(the id .*) \w+ a durable subscription of this session",
        r"\1 is that of a durable subscription of this session",
    ),
    (r"\(limit topics_max (\d+)\); delete topics", r"(limit topics_max \1). Delete topics"),
    (
        r"subscriptions in all its sessions, and all principals together (.*) for principals with fewer; UNSUBSCRIBE",
        r"subscriptions in all its sessions. All principals together \1 for principals with fewer. UNSUBSCRIBE",
    ),
]


def all_recordings() -> list[tuple[str, Recording]]:
    """Return every recording of the fixtures, with the version of the gateway that made it."""
    return [(version, recording) for path in FILES for version, recordings in [load(path)] for recording in recordings]


@pytest.mark.parametrize(("server", "recording"), [pytest.param(*pair, id=pair[1].name) for pair in all_recordings()])
def test_clients_receive_the_recorded_bytes(server: str, recording: Recording) -> None:
    """Every byte that each client receives is as recorded."""
    assert list(differences(recording, server, REWORDED)) == []
