"""Libraries of others keep the promises that docs/integrate/conformance.md lists for them."""

import pytest

from tests.conformance.judging import judge, reasons
from tests.conformance.libraries import OTHERS
from tests.interop.third_party import LIBRARIES

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("name", OTHERS)
def test_a_library_keeps_its_promises(name: str) -> None:
    """Each promise that a library keeps by the document holds with its driver."""
    LIBRARIES["stomp.py" if name == "stomp.py" else "@stomp/stompjs"].require()
    library = OTHERS[name]
    verdicts = judge(library.command, library.transport, library.kept)
    assert {code: one.verdict for code, one in verdicts.items()} == dict.fromkeys(library.kept, "pass"), reasons(
        verdicts
    )
