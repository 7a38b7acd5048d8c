"""One target under atheris: `python -m tests.fuzz.guided TARGET LIBFUZZER-ARGUMENTS...`. `python -m tests.fuzz` starts it."""

import sys

import atheris

with atheris.instrument_imports(include=["maxam"]):
    from tests.fuzz.targets import target

if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target(sys.argv[1]).check)
    atheris.Fuzz()
