"""Dashboard and alert rules ask for what a gateway has: its /metrics, their names, labels and the labels' values."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from maxam.api.routes.metrics import METRICS
from maxam.config import AdminSettings
from maxam.links import link_topic
from maxam.records import REJECTION_RESULTS
from tests.alerts.prometheus import DASHBOARD, DEPLOY, alerts, expressions, panels, promtool, recorded
from tests.streams.cli.test_reload_admin import get
from tests.support.bridge_links import link
from tests.support.living_gateway import ANYTHING_GOES, Living, Site, living, run, until

GIVEN = {"job", "instance"}  # labels that Prometheus adds to all that it scrapes
OF_PROMETHEUS = {"up"}
OF_FRONTS = {declared.name for declared in METRICS if "front" in declared.labels}  # none without [fronts]
STRING = re.compile(r'"[^"]*"')
METRIC = re.compile(r"(?<![:\w])(?:(?:maxam|process)_\w+|up(?=\{))")
SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|without) \(([^)]*)\)")

Samples = dict[str, dict[str, set[str]]]  # values of each label, by name of what is scraped


async def samples_of(gateway: Living) -> tuple[str, Samples]:
    """Scrape once."""
    text = (await get(gateway, "/metrics")).decode()
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = samples.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    return text, samples


def names_in(expression: str) -> set[str]:
    """Return the metrics that a query names."""
    return set(METRIC.findall(STRING.sub('""', expression)))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Samples]:
    """Scrape a gateway that has just been started."""
    found: list[tuple[str, Samples]] = []

    async def test() -> None:
        site = Site(tmp_path_factory.mktemp("site"), "anna")
        (site.schemas / "registry.toml").write_text(ANYTHING_GOES + ANYTHING_GOES.replace("X/**", "B/**"))
        site.policy({"anna": {"send": ["X/**", "B/**"]}})
        site.settings = replace(
            site.settings, admin=AdminSettings(port=0, backups=site.folder / "backups", backup_hook=("/bin/true",))
        )
        async with living(site) as gateway, gateway.client("anna") as anna:
            await anna.send("X/a", b"v")
            await anna.send(link_topic("V1").decode(), link("V1", "V1/**").encoded())
            await until(lambda: bool(gateway.gateway.bridge_links.links))
            found.append(await samples_of(gateway))

    run(test)
    return found[0]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_what_is_asked_for_is_there(scraped: tuple[str, Samples], expression: str) -> None:
    """Each metric of a query is scraped from a gateway that has just started, with each label and value that is asked for."""
    samples = scraped[1]
    for series in recorded():
        expression = expression.replace(series, "")
    names = names_in(expression)
    assert names - OF_PROMETHEUS <= samples.keys()
    for name, selector in SELECTOR.findall(expression):
        for label, operator, value in MATCHER.findall(selector):
            if label not in GIVEN:
                assert label in samples[name], (name, label)
                assert "~" in operator or value in samples[name][label], (name, label, value)
    known = GIVEN.union(*(samples[name] for name in names - OF_PROMETHEUS))
    for labels in GROUPING.findall(expression):
        assert set(labels.split(", ")) <= known, labels


def test_alerts_and_legends_name_labels_that_are_there(scraped: tuple[str, Samples]) -> None:
    """Each label in the text of a summary or a legend is a label of the metrics in its expression."""
    samples = scraped[1]
    for name, fields in alerts().items():
        known = GIVEN.union(*(samples.get(metric, ()) for metric in names_in(fields["expr"])))
        assert set(re.findall(r"\$labels\.(\w+)", fields["summary"] + fields["description"])) <= known, name
    for panel in panels():
        for target in panel.get("targets", ()):
            known = GIVEN.union(*(samples[metric] for metric in names_in(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, panel["title"]


def test_thresholds_of_quantiles_are_bounds_of_buckets(scraped: tuple[str, Samples]) -> None:
    """Within a bucket a quantile is a guess: whether it is above a threshold is known only where a bucket ends."""
    thresholds = re.findall(r"instance:(\w+):p99_5m > (\S+)", "\n".join(expressions()))
    assert len(thresholds) == len(recorded())
    for name, threshold in thresholds:
        assert threshold in scraped[1][f"{name}_bucket"]["le"], name


def test_prometheus_has_nothing_to_say_about_the_metrics(scraped: tuple[str, Samples]) -> None:
    """Names, units, types and help texts are as Prometheus' conventions want them."""
    checked = promtool("check", "metrics", text=scraped[0])
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_all_series_are_there_from_the_start(scraped: tuple[str, Samples]) -> None:
    """A counter that appears with its first event hides that event: each declared metric has a value in the first scrape, and all its labels."""
    samples = scraped[1]
    for declared in METRICS:
        if declared.name in OF_FRONTS:
            continue
        name = f"{declared.name}_count" if declared.kind == "histogram" else declared.name
        assert samples[name].keys() == set(declared.labels), name
    assert samples["maxam_sends_rejected_total"]["result"] == REJECTION_RESULTS.keys()


def test_results_are_those_of_the_protocol() -> None:
    """The codes that are counted are the closed table of docs/protocol.md, those of rejected SENDs."""
    page = (DEPLOY.parent / "docs" / "protocol.md").read_text()
    assert dict(re.findall(r"^\| `([\w-]+)` \| `(rejected-[a-z]+)` \|", page, re.MULTILINE)) == REJECTION_RESULTS


def test_the_dashboard_is_what_its_script_makes() -> None:
    """The committed file is up to date: `python deploy/grafana/dashboard.py > deploy/grafana/maxam.json`."""
    script = DEPLOY / "grafana" / "dashboard.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert made.stdout == DASHBOARD.read_text()


def test_panels_are_whole_and_do_not_overlap() -> None:
    """Each has a title of its own, a description and a place on the grid that no other has."""
    taken: dict[tuple[int, int], str] = {}
    shown = [panel for panel in panels() if panel["type"] != "row"]
    assert len({panel["title"] for panel in shown}) == len(shown)
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            assert x < 24, panel["title"]
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken.get((x, y)))
                taken[x, y] = panel["title"]
    for panel in shown:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_the_page_names_no_metric_that_is_not_there(scraped: tuple[str, Samples]) -> None:
    """Docs of metrics and alerts name only what is scraped; a histogram goes by its own name."""
    known = {re.sub("_(bucket|sum|count)$", "", name) for name in scraped[1]}
    for page in ("metrics.md", "alerts.md"):
        named = set(
            re.findall(r"\b(?:maxam|process)_[a-z_]+\b", (DEPLOY.parent / "docs" / "operate" / page).read_text())
        )
        assert named - OF_FRONTS <= known, page
