"""Fixtures that several folders of tests share, and which maxam a run of the tests is about."""

import datetime as dt
import os
import signal
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

from maxam.api import application
from maxam.compiled import child_environment, core
from maxam.pki.certificates import issue_development_certificates
from tests.cores import is_left_out, is_left_to_the_other
from tests.support.patience import PATIENCE_S

# Processes that tests start run the maxam that is tested, and find the examples of the documents.
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
os.environ["PYTHONPATH"] = os.pathsep.join([child_environment()["PYTHONPATH"], str(EXAMPLES)])
# A background job of a shell ignores SIGINT, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an answer of the admin API takes is the machine's business too; tests of the limit set their own.
patch.object(application, "REQUEST_TIMEOUT_S", PATIENCE_S).start()
# A busy machine may take any time for an example, or to generate one. All else is as Hypothesis has it, here and in CI.
_PROFILE = settings.get_profile(settings.get_current_profile_name())
_UNHURRIED = {*_PROFILE.suppress_health_check, HealthCheck.too_slow}
settings.register_profile("any time", parent=_PROFILE, deadline=None, suppress_health_check=list(_UNHURRIED))
settings.load_profile("any time")
# Rooms with few tests that take long. They come first, so that at the end no worker has a long one while the others have none.
_FIRST = ["pipeline", "conformance", "deployment", "cluster", "faults", "interop", "console", "web"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Literal[True] | None:
    """Import nothing of a file or folder that the other run has."""
    path = f"{collection_path.relative_to(config.rootpath)}{os.sep if collection_path.is_dir() else ''}"
    return is_left_out(path, core()) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the other run what it tests alone. Tests that replace functions of the core run interpreted: machine code does not see it."""
    own = core()

    def left(item: pytest.Item) -> bool:
        if item.get_closest_marker("interpreted"):
            return own == "compiled"
        return is_left_to_the_other(item.nodeid, own, slow=item.get_closest_marker("slow") is not None)

    def place(item: pytest.Item) -> int:
        room = item.nodeid.split("/")[1]
        return _FIRST.index(room) if room in _FIRST else len(_FIRST)

    config.hook.pytest_deselected(items=[item for item in items if left(item)])
    items[:] = sorted((item for item in items if not left(item)), key=place)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, without which one process runs all tests
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, and one worker all tests of the pipeline: one Spark at a time is enough."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        """Sees a scope in each file."""

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "pipeline" if file.startswith("tests/pipeline/") else file

    config.option.loadscopereorder = False  # it would begin with the files that have most tests
    return Files(config, log)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Issue one folder of certificates for all tests that start a gateway; they must not change it."""
    folder = tmp_path_factory.mktemp("certificates")
    issue_development_certificates(folder, dt.datetime.now(dt.UTC))
    return folder
