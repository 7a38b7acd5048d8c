"""One browser and one floor for all tests of the console: both take seconds to be there."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest
from playwright.sync_api import Browser

from tests.console.floor import SEEDED, Floor, open_floor
from tests.console.operator_browser import OperatorPage, open_browser, operator

OpenTab = Callable[..., AbstractContextManager[OperatorPage]]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Run one Chromium; each test has a profile of its own in it."""
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Floor]:
    """Run one gateway with very many topics, some of which never rest."""
    with open_floor(tmp_path_factory.mktemp("floor")) as floor:
        floor.seed(SEEDED)
        with floor.updates(per_s=1000):
            yield floor


@pytest.fixture
def tab(browser: Browser, floor: Floor) -> OpenTab:
    """Open tabs on the floor; each asserts at its end that nothing went wrong in it."""
    return partial(operator, browser, floor.origin, floor.gateway.certificates)
