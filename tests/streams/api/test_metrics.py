"""The metrics of a gateway are those that the page documents, and follow what happens."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from maxam.api.routes.metrics import METRICS
from maxam.config import AdminSettings
from tests.streams.cli.test_reload_admin import get
from tests.support.living_gateway import Site, living, run

HISTOGRAM_PART = re.compile("_(bucket|sum|count)$")
PAGE = Path(__file__).parents[3] / "docs" / "operate" / "metrics.md"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The files of a gateway with one client."""
    return Site(tmp_path, "anna")


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=1.0.0"])
def test_metrics_are_the_ones_documented(site: Site, accept: str) -> None:
    """The scraped metrics, docs/operate/metrics.md and the declarations have the same names, labels and texts. Values follow events."""
    documented = {
        match[1]: (match[2], tuple(re.findall(r"`(\w+)`", match[3])), match[4])
        for match in re.finditer(r"^\| `(maxam_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    }
    assert documented == {one.name: (one.kind, one.labels, one.help) for one in METRICS}
    site.settings = replace(
        site.settings, admin=AdminSettings(port=0, backups=site.folder / "backups", backup_hook=("/bin/true",))
    )

    async def test() -> None:
        async with living(site) as gateway, gateway.client("anna") as anna:
            assert (await anna.send("X/a", b"v"))[0] == b"accepted"
            assert (await anna.send("Y/a", b"v"))[0] == b"rejected-unauthorised"
            site.policy_file.write_text("nonsense")
            await gateway.reload()
            text = (await get(gateway, "/metrics", accept)).decode()
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text.replace("# EOF\n", ""))
            for sample in family.samples
        }
        names = {HISTOGRAM_PART.sub("", name) for name, _ in samples if name.startswith("maxam_")}
        bridged = {
            name for name, (_, labels, _) in documented.items() if {"venue", "front"} & set(labels)
        }  # none of these without a bridge or front
        assert names == set(documented) - bridged
        for sample, labels in samples:
            name = HISTOGRAM_PART.sub("", sample)
            if name in documented:
                assert {label for label, _ in labels if label != "le"} == set(documented[name][1])
        for wanted, value in (
            (("maxam_changes_total", ()), 1),
            (
                (
                    "maxam_sends_rejected_total",
                    (("disposition", "rejected-unauthorised"), ("result", "unauthorised")),
                ),
                1,
            ),
            (("maxam_connections", (("state", "connected"),)), 1),
            (("maxam_topics", ()), 1),
            (("maxam_ready", ()), 1),
            (("maxam_reload_failed", (("item", "policy"),)), 1),
            (("maxam_reload_failed", (("item", "schemas"),)), 0),
            (("maxam_reloads_total", (("item", "policy"), ("outcome", "refused"))), 1),
        ):
            assert samples[wanted] == value, wanted
        own = {name for name, _ in samples if name.startswith("process_")}
        assert own == set(re.findall(r"`(process_\w+)`", PAGE.read_text()))

    run(test)
