"""Fixtures that several folders of tests share."""

import datetime as dt
from pathlib import Path

import pytest

from maxam.admin.certificates import issue_development_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Issue one folder of certificates for all tests that start a gateway; they must not change it."""
    folder = tmp_path_factory.mktemp("certificates")
    issue_development_certificates(folder, dt.datetime.now(dt.UTC))
    return folder
