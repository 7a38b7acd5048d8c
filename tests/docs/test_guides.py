"""Guides are followed strictly: what they show is printed, and what fails is shown to fail."""

import subprocess

from tests.docs.guides import Block, faults


class Shell:
    """Runs commands as they are."""

    exit_code = 0

    def run(self, text: str) -> str:
        """Run a command; give what it printed, on either stream."""
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
        self.exit_code = done.returncode
        return done.stdout + done.stderr

    def execute(self, block: Block) -> str:
        """There are no snippets here."""
        raise AssertionError(block)


def followed(*lines: str) -> list[str]:
    """Follow a guide of one block, and give the first line of each fault."""
    text = "\n".join(["```console", *lines, "```"])
    return [": ".join(fault.splitlines()[:2]) for fault in faults(Shell(), text)]


def test_a_command_that_fails_is_a_fault_unless_the_guide_shows_its_code() -> None:
    """Its output does not matter, and the code must be the one that is shown."""
    assert followed("$ echo a", "a", "$ true") == []
    (fault,) = followed("$ echo a; exit 3", "a")
    assert fault.startswith("line 2: echo a; exit 3: ends with 3")
    assert followed("$ echo a; exit 3", "a", "$ echo $?", "3", "$ true") == []
    for lines, place in (
        (("$ exit 3", "$ echo $?", "1"), "line 3: echo $?: never prints '1'"),
        (("$ true", "$ echo $?", "1"), "line 3: echo $?: never prints '1'"),
        (("$ echo a", "b"), "line 2: echo a: never prints 'b'"),
    ):
        (fault,) = followed(*lines)
        assert fault.startswith(place)
