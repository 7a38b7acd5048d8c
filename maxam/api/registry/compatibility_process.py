"""Test whether a schema could follow others of its type, in a process of its own: `python -m maxam.api.registry.compatibility_process`.

Two schemas of 16 KiB can take a third of a second. Compiled code keeps the interpreter to itself meanwhile, in whichever thread it
runs. So nothing of it is done in the gateway's process.
"""

import json
import sys
from collections.abc import Iterable
from typing import Final

import trio

from maxam.avro.compatibility import check_minors
from maxam.avro.rule import SchemaVersion
from maxam.avro.schema import Schema, parse_schema
from maxam.avro.source import read_source
from maxam.background import enter_background
from maxam.compiled import child_environment
from maxam.errors import SchemaError

MESSAGES_MAX: Final = 20
MESSAGE_CHARACTERS_MAX: Final = 1_000  # a union that lacks a branch lists all that it has
_NICENESS: Final = 10
_INVALID: Final = 2  # the exit code when the schema given is none
_NEWER: Final = "the schema given"


async def incompatibilities(given: str, olders: Iterable[SchemaVersion], mode: str) -> list[str]:
    """Return why a schema could not follow some versions of a type.

    Args:
        given: Text of the schema.
        olders: Versions to compare it with, each by itself.
        mode: One of COMPATIBILITIES: in which directions.

    Returns:
        The reasons, those of the first minor first: MESSAGES_MAX at most, and then that there may be more.

    Raises:
        SchemaError: `given` is no schema.
        OSError: There is no process to be had, or it was ended from without.
    """
    lines = [mode.encode(), json.dumps(given).encode()]
    lines += [
        b"%s %s" % (older.minor.encode(), older.schema.text) for older in olders
    ]  # compact JSON: no line ends in it
    done = await trio.run_process(
        [sys.executable, "-m", "maxam.api.registry.compatibility_process"],
        stdin=b"\n".join(lines),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=child_environment(),
    )
    if done.returncode == _INVALID:
        raise SchemaError(done.stderr.decode().strip())
    if done.returncode != 0:
        raise OSError(
            f"the test of compatibility ended with {done.returncode}: {done.stderr[-200:].decode(errors='replace')}"
        )
    messages: list[str] = json.loads(done.stdout)
    return messages


def _validate(given: Schema, olders: Iterable[SchemaVersion], mode: str) -> list[str]:
    found: dict[str, None] = {}  # in order; what is wrong with one minor often is with the next
    for older in olders:
        for finding in check_minors((older, SchemaVersion("", _NEWER, "", given)), mode):
            text = (
                f"{finding.incompatibility}. {mode} asks that {finding.reader.minor} reads all that {finding.writer.minor} "
                f"writes; {finding.remedy}"
            )
            if len(text) > MESSAGE_CHARACTERS_MAX:
                text = text[: MESSAGE_CHARACTERS_MAX - 3] + "..."
            found[text] = None
            if len(found) == MESSAGES_MAX:
                return [*found, "there may be more, which are not listed"]
    return list(found)


def _older(line: bytes) -> SchemaVersion:
    minor, _, text = line.partition(b" ")
    return SchemaVersion("", minor.decode(), "", parse_schema(read_source("schema", text)))


def main() -> int:
    """Run the process: the reasons go to standard output, as a JSON array."""
    enter_background(_NICENESS)
    mode, given, *olders = sys.stdin.buffer.read().split(b"\n")
    try:
        schema = parse_schema(read_source("schema", json.loads(given).encode(errors="surrogatepass")))
    except SchemaError as error:
        sys.stderr.write(str(error).encode(errors="backslashreplace").decode())
        return _INVALID
    except RecursionError:
        sys.stderr.write("schema: nested too deeply")
        return _INVALID
    json.dump(_validate(schema, (_older(line) for line in olders), mode.decode()), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
