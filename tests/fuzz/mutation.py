"""Changes to inputs, from a seed that repeats them: what a coverage-guided fuzzer does, without the coverage."""

import random
from collections.abc import Sequence

BYTES_MAX = 4096  # longer inputs find little more, and cost time
_INTERESTING = (0, 1, 2, 9, 10, 13, 27, 30, 32, 45, 48, 57, 58, 92, 127, 128, 129, 191, 192, 237, 254, 255)


def mutated(rng: random.Random, corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return one of the corpus after a few changes."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 12))):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 4, 16, 100))
        match rng.randrange(9):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at : at + 1] = bytes([rng.choice(_INTERESTING)])
            case 2:
                if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length] * rng.choice((1, 1, 2, 40))
            case 5:
                data[at:at] = rng.choice(words)
            case 6:
                data[at : at + length] = rng.choice(words)
            case 7:
                other = rng.choice(corpus)
                start = rng.randrange(len(other) + 1)
                data[at:at] = other[start : start + length * 4]
            case _:
                other = rng.choice(corpus)
                data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data[: max(BYTES_MAX, 6000)])
