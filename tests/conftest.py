"""Fixtures that several folders of tests share, and which maxam a run of the tests is about."""

import datetime as dt
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from maxam.admin.certificates import issue_development_certificates
from maxam.compiled import child_environment

os.environ["PYTHONPATH"] = child_environment()["PYTHONPATH"]  # processes that tests start run the maxam that is tested
# What a shell runs in its background ignores SIGINT, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes, or to make one, is the machine's business, which may be busy; all else as Hypothesis would have it, here and in CI.
_PROFILE = settings.get_profile(settings.get_current_profile_name())
_UNHURRIED = {*_PROFILE.suppress_health_check, HealthCheck.too_slow}
settings.register_profile("any time", parent=_PROFILE, deadline=None, suppress_health_check=list(_UNHURRIED))
settings.load_profile("any time")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Issue one folder of certificates for all tests that start a gateway; they must not change it."""
    folder = tmp_path_factory.mktemp("certificates")
    issue_development_certificates(folder, dt.datetime.now(dt.UTC))
    return folder
