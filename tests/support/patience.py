"""How long a test waits for what will surely come: a deadline ends a hang, and measures nothing.

Both runs of the tests share the processors with each other and, in CI, with other programs.
"""

from typing import Final

PATIENCE_S: Final = 300.0
