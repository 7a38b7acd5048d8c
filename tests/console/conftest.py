"""One browser and one floor for the tests of a file: both take seconds to be there.

Not for all files: Playwright's blocking API keeps an event loop of its own in this thread, which tests of other folders must not meet.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest
from playwright.sync_api import Browser

from tests.console.floor import Floor, open_floor
from tests.console.operator_browser import OperatorPage, open_browser, operator

OpenTab = Callable[..., AbstractContextManager[OperatorPage]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one Chromium; each test has a profile of its own in it."""
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def floor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Floor]:
    """Run one gateway with as many topics as the file's TOPICS has, some of which never rest."""
    with open_floor(tmp_path_factory.mktemp("floor"), "[limits]\nlag_threshold_s = 0.5") as floor:
        floor.seed(request.module.TOPICS)
        floor.back_up()  # without a backup not all would be well
        with floor.updates(per_s=1000):
            yield floor


@pytest.fixture
def tab(browser: Browser, floor: Floor) -> OpenTab:
    """Open tabs on the floor; each asserts at its end that nothing went wrong in it."""
    return partial(operator, browser, floor.origin, floor.gateway.certificates)
