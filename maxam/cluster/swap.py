"""One change of the head of a log that is repeated until its outcome is known."""

from collections.abc import Callable
from typing import Final

from maxam.cluster.log import Head, LogLostError

PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 0.5


def swap_until_known(swap: Callable[[], Head], pause: Callable[[float], None]) -> Head:
    """Return the new head, once the swap has taken effect.

    An unknown outcome is neither a success nor a refusal. The same swap compares with the same head again, so at most one of its tries
    takes effect, however late they arrive.

    Args:
        swap: Makes one try: `append` or `beat` of a log, each time with the same arguments.
        pause: Waits for some seconds. It may raise an error to give up, and then the outcome stays unknown.

    Raises:
        SupersededError: The head is another one. If a try before had an unknown outcome, it may have taken effect ahead of that.
        LogFullError: The log is full, and no try is in it.
    """
    pause_s = PAUSE_S_MIN
    while True:
        try:
            return swap()
        except LogLostError:
            pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
