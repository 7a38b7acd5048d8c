"""The generated reference is up to date, and complete."""

import pytest

pytest.importorskip("pyspark")

from tests.docs import reference


@pytest.mark.slow
def test_the_reference_is_up_to_date() -> None:
    """Each page is what `make reference` would write."""
    assert reference.stale() == []


@pytest.mark.slow
def test_no_former_name_is_shown() -> None:
    """The reference shows each thing by its present name only."""
    text = "".join(reference.pages().values())
    for name in ("`--gateway", "--certificate ", "maxam-admin reload", "maxam-admin dev-certs", "MAXAM_GATEWAY"):
        assert name not in text, name
    assert "maxam-admin gateway reload-status" in text
    assert "`-a, --admin HOST:PORT`" in text
