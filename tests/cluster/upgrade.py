"""Upgrade a real cluster to the release of this tree, member by member and under load, and go back.

`python -m tests.cluster.upgrade BUNDLE`: three gateways run the release of a bundle, with the clients of `tests.cluster.load`. Each
follower is stopped, and started with the other release. Then the leader hands over, and its next start is one of the other release too.
The way back is the same. Checked is all that `tests.cluster.kill_harness` checks.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.kill_harness import run
from tests.cluster.load import Load
from tests.cluster.supervised import Supervised, in_thread


def install(bundle: Path, folder: Path) -> Path:
    """Install a bundle below a folder, and return its maxam-gateway."""
    subprocess.run(["tar", "-xzf", bundle, "-C", folder], check=True)
    (unpacked,) = folder.iterdir()
    environment = os.environ | {"PYTHON": sys.executable}
    environment.pop("PYTHONPATH", None)
    subprocess.run([unpacked / "install", "--root", folder / "root"], env=environment, check=True)
    return folder / "root/opt/maxam/current/bin/maxam-gateway"


async def roll(supervised: Supervised, load: Load, program: Path | None) -> str:
    """Go over to another release, the leader last; return the longest times without a RECEIPT for people."""
    site = supervised.site
    leader = await supervised.settled()
    term = (await supervised.head()).term
    load.measure_gap()
    for name, member in site.members.items():
        if name != leader:
            await supervised.stop_one(name)
            member.program = program
            supervised.release(name)
            await supervised.settled()
            await load.all_accepted()
    followers_s, late_s = load.gap_s, load.late_s
    head = await supervised.head()
    if head.term != term:  # the machine was too slow for the lease
        raise AssertionError(f"{leader} has lost its lead while followers were upgraded\n{supervised.state()}")
    load.measure_gap()
    site.members[leader].program = program
    await in_thread(site.admin, leader, "cluster", "handover")
    await load.all_accepted()
    if await supervised.settled() == leader:
        raise AssertionError(f"{leader} leads again\n{supervised.state()}")
    terms = (await supervised.head()).term - term
    served_s = supervised.newest_s("serving") - supervised.newest_s("handover")
    return (
        f"{followers_s:.2f} s for the followers, {load.gap_s:.2f} s for the handover: the next leader listens after {served_s:.2f} s;"
        f" {terms} new term{'s' * (terms > 1)}; the clients' own process stood still for {late_s:.2f} s and {load.late_s:.2f} s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. The folder is kept when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.upgrade")
    parser.add_argument("bundle", type=Path, help="bundle of the other release")
    parser.add_argument("--rounds", type=int, default=1, help="ways there and back")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="maxam-upgrade-"))
    sys.stdout.write(f"seed {options.seed}, {folder}\n")
    for part in ("release", "cluster"):
        (folder / part).mkdir()
    old = install(options.bundle.absolute(), folder / "release")

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    async def there_and_back(supervised: Supervised, load: Load) -> None:
        for number in range(1, options.rounds + 1):
            report(f"{number}: upgrade: longest time without a RECEIPT {await roll(supervised, load, None)}")
            report(f"{number}: way back: {await roll(supervised, load, old)}")

    totals = run(folder / "cluster", options.seed, {}, program=old, work=there_and_back, report=report)
    shutil.rmtree(folder)
    report("\n".join(totals.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
