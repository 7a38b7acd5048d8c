"""Provenance of values on all short ways between three gateways."""

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from maxam.bridge.provenance import ORIGIN_GATEWAY, ORIGIN_PUBLISHER, VIA, digest, forwarded, written_by

LOCAL = {"message-id": "7", "subscription": "s", "destination": "X/a", "publisher": "pump", "timestamp": "12"}


def test_all_short_ways() -> None:
    """A value passes each gateway once at most. It keeps its origin, and `via` has its way."""
    for way in product("ABC", repeat=5):
        headers: dict[str, str] | None = {**LOCAL, "colour": "red"}
        passed = [way[0]]
        for sender, target in pairwise(way):
            assert headers is not None
            found = forwarded(headers, sender, target)
            if sender == target:
                break
            if target in passed:
                assert found is None, way
                break
            assert found is not None, way
            assert (found[ORIGIN_GATEWAY], found[ORIGIN_PUBLISHER]) == (way[0], "pump")
            assert found[VIA] == ",".join(passed)
            assert written_by(found, sender)
            assert not any(written_by(found, other) for other in "ABC" if other != sender)
            assert not found.keys() & LOCAL.keys()
            assert digest(found, b"v") == digest({**LOCAL, "colour": "red"}, b"v")
            passed.append(target)
            headers = {**found, **LOCAL, "publisher": "bridge"}


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(("", "1", "2"))), st.sampled_from((b"", b"1")))
def test_digests_differ_with_headers_and_body(headers: dict[str, str], body: bytes) -> None:
    """Any other header, value or body has another digest."""
    same = digest(headers, body)
    assert digest(dict(reversed(headers.items())), body) == same
    assert digest(headers, body + b"x") != same
    assert digest({**headers, "d": ""}, body) != same
    for name, value in headers.items():
        assert digest({**headers, name: value + "x"}, body) != same
