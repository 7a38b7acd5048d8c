"""The check of enrolment settings, without a running gateway."""

from dataclasses import replace
from pathlib import Path

import pytest

from maxam.enrolment.enrolment import check_enrolment
from maxam.errors import ConfigurationError
from maxam.gateway.loaded_config import read_config
from tests.support.enrolment_site import EnrolmentSite


def test_an_authority_that_cannot_serve_is_told_at_start(tmp_path: Path) -> None:
    """A wrong passphrase, a CA that clients are not accepted of, or that cannot prove the server: start and --check report it."""
    site = EnrolmentSite(tmp_path)
    enrolment = site.settings.enrolment
    sources = read_config(site.settings)
    check_enrolment(site.settings, sources)
    (tmp_path / "other").write_text("another passphrase")
    (tmp_path / "other").chmod(0o600)
    bad = replace(site.settings, enrolment=replace(enrolment, passphrase_file=tmp_path / "other"))
    with pytest.raises(ConfigurationError, match="passphrase"):
        check_enrolment(bad, sources)
    bad = replace(site.settings, enrolment=replace(enrolment, server_ca=None))
    with pytest.raises(ConfigurationError, match="signed by"):
        check_enrolment(bad, sources)
    bad = replace(site.settings, tls=replace(site.settings.tls, client_ca=site.certificates / "ca.pem"))
    with pytest.raises(ConfigurationError, match=r"not in \[tls\] client_ca"):
        check_enrolment(bad, read_config(bad))
