"""docs/operate/cluster.md is true: its commands, pasted into one shell in an empty folder, print what it shows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.guides import faults
from tests.faults.test_second_site_guide import Operator, programs_in
from tests.support.etcd_cluster import require_etcd
from tests.support.gateway_process import kept_ports

GUIDE = Path(__file__).parents[2] / "docs/operate/cluster.md"
CLIENTS, ADMINS, LINKS = ("61614", "61615", "61616"), ("8643", "8653", "8663"), ("8646", "8656", "8666")
PORTS = (*CLIENTS, *ADMINS, *LINKS, "2379", "2380", "2381", "2390", "2391", "2392")

pytestmark = pytest.mark.interop


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """Stand in an empty folder, with our programs and etcd on the path."""
    programs = programs_in(tmp_path)
    (programs / "etcd").symlink_to(require_etcd())
    operator = Operator(tmp_path / "site", programs, "$A $B $C $N1 $N2 $N3")
    yield operator
    operator.leave()


def test_the_guide_is_true(operator: Operator) -> None:
    """From certificates to a member that leaves, on free ports."""
    guide = re.sub(r"^ {3}", "", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)  # blocks of numbered steps
    for port, ours in zip(PORTS, kept_ports(len(PORTS)), strict=True):
        guide = guide.replace(port, str(ours))
    assert faults(operator, guide, print) == []
