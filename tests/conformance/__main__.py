"""Certify all libraries, and find all broken clients: `python -m tests.conformance [NAME ...]`."""

import sys

import click

from maxam.conformance.running import PROMISES
from tests.conformance.drivers.broken import BROKEN
from tests.conformance.judging import judge, reasons
from tests.conformance.libraries import LIBRARIES, OTHERS, broken
from tests.web.node import PACKAGE, run_node


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice([*LIBRARIES, *OTHERS, *BROKEN]))
@click.option("--runs", default=5, show_default=True, help="Cases of each seeded promise.")
def main(names: tuple[str, ...], runs: int) -> None:
    """Judge them, and exit with 1 if a verdict is not the expected one."""
    wrong = False
    for name in names or (*LIBRARIES, *OTHERS, *BROKEN):
        if name.startswith("typescript"):
            run_node(str(PACKAGE / "build.mjs"))
        if name not in BROKEN:
            library = (LIBRARIES | OTHERS)[name]
            expected = set(library.broken)
            verdicts = judge(library.command, library.transport, runs=runs)
            unclaimed = {code for code, one in verdicts.items() if one.verdict == "not-claimed"}
            wrong |= unclaimed != library.unclaimed or set(verdicts) != set(PROMISES)
        else:
            expected = set(BROKEN[name][1])
            verdicts = judge(broken(name), only=(*expected, "sends-exactly"), timeout_s=25.0)
        failed = {code for code, one in verdicts.items() if one.verdict == "fail"}
        wrong |= failed != expected
        click.echo(f"{name}: {'as expected' if failed == expected else reasons(verdicts)}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
