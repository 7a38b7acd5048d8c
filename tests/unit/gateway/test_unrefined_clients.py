"""A client that sends none of the headers that refine a subscription receives what it received before they existed."""

from pathlib import Path

import pytest

from tests.support.recorded_sessions import Recording, differences, load

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = sorted(FIXTURES.glob("sessions_*.json.xz"))
# Texts for people in the bodies of ERRORs that were reworded on purpose since the recording, with the words of today. Every other
# byte is as it was.
REWORDED = [
    (
        r"has connected with the client-id (\S+), and the newest has the session",
        r"has the client-id \1 now. The newest has the session",
    ),
]


def all_recordings() -> list[tuple[str, Recording]]:
    """Return every recording of the fixtures, with the version of the gateway that made it."""
    return [(version, recording) for path in FILES for version, recordings in [load(path)] for recording in recordings]


@pytest.mark.parametrize(("server", "recording"), [pytest.param(*pair, id=pair[1].name) for pair in all_recordings()])
def test_clients_receive_the_recorded_bytes(server: str, recording: Recording) -> None:
    """Every byte that each client receives is as recorded."""
    assert list(differences(recording, server, REWORDED)) == []
