"""The alert rules of deploy/prometheus, run by Prometheus' own promtool over series that a gateway could have made."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from maxam.cli.main import main
from tests.alerts.prometheus import CONFIGURATION, RULES, alerts, minutes_of, panels, promtool, series

DOCS = RULES.parents[2] / "docs" / "operate"

# Minutes: a healthy stretch, an unhealthy one, and a healthy one that outlasts every window of the rules.
BAD, GOOD_AGAIN, END = 20, 110, 200
GIB = 2.0**30
DAY_S = 86_400.0

Value = Callable[[int], float]  # of a minute since the beginning of its stretch; of a counter, its growth


@dataclass(frozen=True)
class Course:
    """How a series goes while all is well, and while it is not."""

    name: str
    good: Value
    bad: Value
    counts: bool = False

    def values(self, until: int, *, ill: bool) -> list[float]:
        """Return a value a minute."""
        values: list[float] = []
        for minute in range(until):
            value = self.bad(minute - BAD) if ill and BAD <= minute < GOOD_AGAIN else self.good(minute)
            values.append(value + (values[-1] if values else 0.0) if self.counts else value)
        return values


def gauge(name: str, good: float, bad: float) -> Course:
    """A value that is one or the other."""
    return Course(name, lambda _: good, lambda _: bad)


def counter(name: str, good: float, bad: float) -> Course:
    """A total that grows by so much a minute."""
    return Course(name, lambda _: good, lambda _: bad, counts=True)


def histogram(name: str, good_s: float, bad_s: float, bounds: tuple[str, ...]) -> list[Course]:
    """Sixty observations a minute."""
    return [
        counter(
            f'{name}_bucket{{{ON}, le="{bound}"}}',
            60 if good_s <= float(bound) else 0,
            60 if bad_s <= float(bound) else 0,
        )
        for bound in (*bounds, "+Inf")
    ]


ON = 'job="maxam", instance="a:8643"'
BOUNDS = ("0.001", "0.01", "0.1", "0.2", "0.5", "1.0", "2.5")


def role(name: str, good: float, bad: float, instance: str = "a:8643", job: str = "maxam") -> Course:
    """A role of a member of a cluster."""
    return gauge(f'maxam_cluster_role{{job="{job}", instance="{instance}", role="{name}"}}', good, bad)


CASES: dict[str, list[Course]] = {
    "MaxamDown": [gauge(f"up{{{ON}}}", 1, 0)],
    "MaxamNotReady": [gauge(f"maxam_ready{{{ON}}}", 1, 0)],
    "MaxamDegraded": [gauge(f'maxam_degraded{{{ON}, code="reconnect-loop"}}', 0, 1)],
    "MaxamSendsUnavailable": [
        counter(
            f'maxam_sends_rejected_total{{{ON}, disposition="rejected-unavailable", result="memory-low"}}',
            good=0,
            bad=6,
        )
    ],
    "MaxamRestarts": [Course(f"maxam_start_time_seconds{{{ON}}}", lambda _: 7, lambda minute: 60 * (minute // 5))],
    "MaxamNoPublishers": [
        Course(f"maxam_last_change_age_seconds{{{ON}}}", lambda _: 1, lambda minute: 60 * (minute - BAD))
    ],
    "MaxamClock": [gauge(f"maxam_clock_ahead_seconds{{{ON}}}", 0, 7200)],
    "MaxamTopicsOverdue": [gauge(f"maxam_topics_overdue{{{ON}}}", 0, 3)],
    "MaxamObserverBehind": [gauge(f"maxam_follow_lag_seconds{{{ON}}}", 0.2, 90)],
    "MaxamObserverRefused": [gauge(f"maxam_follow_refused{{{ON}}}", 0, 1)],
    "MaxamClusterNoLeader": [role("leading", 1, 0, job="venue-8"), role("following", 0, 1, job="venue-8")],
    "MaxamClusterTwoLeaders": [
        role("leading", 1, 1),
        role("leading", 0, 1, "b:8643"),
        gauge(f"maxam_cluster_term{{{ON}}}", 7, 7),
        gauge('maxam_cluster_term{job="maxam", instance="b:8643"}', 7, 8),
    ],
    "MaxamClusterMemberSilent": [gauge(f'maxam_cluster_members{{{ON}, state="silent"}}', 0, 1), role("leading", 1, 1)],
    "MaxamClusterCopies": [
        gauge(f"maxam_cluster_copies{{{ON}}}", 2, 1),
        gauge(f"maxam_cluster_copies_min{{{ON}}}", 2, 2),
        role("leading", 1, 1),
    ],
    "MaxamClusterForked": [gauge(f"maxam_cluster_forked{{{ON}}}", 0, 1), role("leading", 1, 1)],
    "MaxamClusterDiffers": [gauge(f'maxam_cluster_differs{{{ON}, item="policy"}}', 0, 1)],
    "MaxamClusterLag": [gauge(f"maxam_cluster_lag_seconds{{{ON}}}", 0.1, 60)],
    "MaxamClusterLogFills": [
        gauge(f"maxam_cluster_log_bytes{{{ON}}}", 0.1 * GIB, 0.6 * GIB),
        gauge(f"maxam_cluster_log_limit_bytes{{{ON}}}", GIB, GIB),
        role("leading", 1, 1),
    ],
    "MaxamClusterLogSlow": histogram("maxam_cluster_log_append_seconds", 0.01, 0.5, BOUNDS),
    "MaxamClusterEngineNode": [
        gauge(f'maxam_cluster_engine_nodes{{{ON}, state="down"}}', 0, 1),
        role("leading", 1, 1),
    ],
    "MaxamBridgeDown": [gauge(f'maxam_bridge_link_up{{{ON}, venue="V1"}}', 1, 0)],
    "MaxamBridgeBehind": [
        gauge(f'maxam_bridge_behind_seconds{{{ON}, venue="V1"}}', 1, 400),
        gauge(f'maxam_bridge_link_up{{{ON}, venue="V1"}}', 1, 1),
    ],
    "MaxamBridgeQuarantine": [gauge(f'maxam_bridge_quarantined{{{ON}, venue="V1"}}', 0, 2)],
    "MaxamConsumerStale": [gauge(f'maxam_subscription_lag_seconds{{{ON}, state="connected"}}', 0.2, 31)],
    "MaxamConsumerAway": [gauge(f'maxam_subscription_lag_seconds{{{ON}, state="detached"}}', 600, 3700)],
    "MaxamTakeovers": [counter(f"maxam_takeovers_total{{{ON}}}", 0.5, 6)],
    "MaxamRejects": [
        counter(
            f'maxam_sends_rejected_total{{{ON}, disposition="rejected-invalid", result="schema-mismatch"}}',
            good=1,
            bad=6,
        )
    ],
    "MaxamRejectsLost": [counter(f'maxam_rejected_journal_total{{{ON}, outcome="over-queue"}}', 0, 2)],
    "MaxamDiskLow": [gauge(f"maxam_disk_low{{{ON}}}", 0, 1)],
    "MaxamDiskFillsUp": [
        Course(f"maxam_disk_free_bytes{{{ON}}}", lambda _: 80 * GIB, lambda minute: 80 * GIB - minute * GIB / 2)
    ],
    "MaxamCommitsSlow": histogram("maxam_journal_commit_seconds", 0.01, 0.5, BOUNDS),
    "MaxamBacklog": [gauge(f"maxam_operations_waiting{{{ON}}}", 9_999, 10_001)],
    "MaxamLoopSlow": histogram("maxam_event_loop_lag_seconds", 0.001, 0.25, BOUNDS),
    "MaxamMemoryHigh": [
        gauge(f"process_resident_memory_bytes{{{ON}}}", 2 * GIB, 3.8 * GIB),
        gauge(f"maxam_memory_limit_bytes{{{ON}}}", 4 * GIB, 4 * GIB),
    ],
    "MaxamFilesHigh": [
        gauge(f"process_open_fds{{{ON}}}", 100, 1000),
        gauge(f"process_max_fds{{{ON}}}", 1024, 1024),
    ],
    "MaxamSnapshotsFail": [
        counter(f'maxam_snapshots_total{{{ON}, outcome="failed"}}', 0, 1),
        counter(f'maxam_snapshots_total{{{ON}, outcome="built"}}', 1, 0),
    ],
    "MaxamBackupsFail": [counter(f'maxam_backups_total{{{ON}, outcome="failed"}}', 0, 1)],
    "MaxamBackupNotCopied": [gauge(f"maxam_backup_copied{{{ON}}}", 1, 0)],
    "MaxamBackupOld": [gauge(f"maxam_backup_timestamp_seconds{{{ON}}}", 60, -3 * DAY_S)],
    "MaxamCertificateExpires": [
        gauge(f"maxam_certificate_expiry_timestamp_seconds{{{ON}}}", 40 * DAY_S, 10 * DAY_S),
    ],
    "MaxamCertificateAboutToExpire": [
        gauge(f"maxam_certificate_expiry_timestamp_seconds{{{ON}}}", 40 * DAY_S, 1 * DAY_S),
    ],
    "MaxamAuthorityExpires": [
        gauge(f'maxam_authority_expiry_timestamp_seconds{{{ON}, authority="CA"}}', 400 * DAY_S, 50 * DAY_S)
    ],
    "MaxamClientCertificateExpires": [
        gauge(f"maxam_client_certificate_expiry_timestamp_seconds{{{ON}}}", 30 * DAY_S, 6 * DAY_S)
    ],
    "MaxamRevocationListLate": [gauge(f'maxam_crl_expiry_timestamp_seconds{{{ON}, authority="CA"}}', 40 * DAY_S, 60)],
    "MaxamReloadFailed": [gauge(f'maxam_reload_failed{{{ON}, item="policy"}}', 0, 1)],
    "MaxamAuditFailed": [
        gauge(f"maxam_audit_failed{{{ON}}}", 0, 1),
        counter(f"maxam_audit_lost_total{{{ON}}}", 0, 1),
    ],
    "MaxamLimitNear": [gauge(f'maxam_limit_used_ratio{{{ON}, limit="topics_max"}}', 0.7, 0.9)],
    "MaxamConnectionsFull": [counter(f'maxam_connections_refused_total{{{ON}, stage="accept"}}', 0, 5)],
    "MaxamConnectionsRefused": [counter(f'maxam_connections_refused_total{{{ON}, stage="handshake"}}', 6, 60)],
}


def _expected(found: list[tuple[int, str, float]]) -> list[dict[str, object]]:
    """Return the result of a query after a number of minutes."""
    return [
        {"expr": f"{query} or vector(0)", "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
        for minute, query, value in found
    ]


def _test(courses: list[Course], *, ill: bool, expected: list[dict[str, object]]) -> dict[str, object]:
    return {
        "interval": "1m",
        "input_series": [series(course.name, course.values(END, ill=ill)) for course in courses],
        "promql_expr_test": expected,
    }


def _run(tmp_path: Path, tests: list[dict[str, object]]) -> None:
    plan = tmp_path / "test.json"  # which is YAML too
    plan.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", plan)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_time_and_clears(tmp_path: Path) -> None:
    """Each alert is quiet while the gateway is healthy, fires once after its duration, and is quiet again."""
    found = alerts()
    assert set(found) == set(CASES)
    groups: list[tuple[dict[str, Course], list[dict[str, object]]]] = []  # of cases that have no series in common
    for name, courses in CASES.items():
        firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
        expected = [(BAD - 1, firing, 0.0), (GOOD_AGAIN - 1, firing, 1.0), (END - 1, firing, 0.0)]
        if minutes_of(found[name]):
            expected.append((BAD + minutes_of(found[name]) - 1, firing, 0.0))
        mine = {course.name: course for course in courses}
        group = next((group for group in groups if not group[0].keys() & mine.keys()), None)
        if group is None:
            groups.append(group := ({}, []))
        group[0].update(mine)
        group[1].extend(_expected(expected))
    tests = [_test(list(courses.values()), ill=True, expected=expected) for courses, expected in groups]
    _run(tmp_path, tests)


def test_a_healthy_gateway_alerts_nobody(tmp_path: Path) -> None:
    """With all series as they are while all is well no alert fires, nor waits for its duration."""
    courses = {course.name: course for courses in CASES.values() for course in courses}
    quiet = _expected([(minute, "count(ALERTS)", 0.0) for minute in (1, BAD, GOOD_AGAIN, END - 1)])
    _run(tmp_path, [_test(list(courses.values()), ill=False, expected=quiet)])


def test_nobody_connected_and_nothing_published_ever_alerts_nobody(tmp_path: Path) -> None:
    """A new gateway that is not used yet is well: 0 stands for never there."""
    unused = (
        "maxam_last_change_age_seconds",
        "maxam_client_certificate_expiry_timestamp_seconds",
    )
    courses = [gauge(f"{name}{{{ON}}}", 0, 0) for name in unused]
    _run(tmp_path, [_test(courses, ill=False, expected=_expected([(END - 1, "count(ALERTS)", 0.0)]))])


def test_a_gateway_that_never_made_a_backup_alerts(tmp_path: Path) -> None:
    """If it is to make backups; without `[admin] backups` there is no such series."""
    none = gauge(f"maxam_backup_timestamp_seconds{{{ON}}}", -3 * DAY_S, -3 * DAY_S)  # the test's time begins at 0
    firing = 'count(ALERTS{alertname="MaxamBackupOld", alertstate="firing"})'
    _run(tmp_path, [_test([none], ill=False, expected=_expected([(10, firing, 1.0)]))])
    _run(tmp_path, [_test([gauge(f"up{{{ON}}}", 1, 1)], ill=False, expected=_expected([(END - 1, firing, 0.0)]))])


def test_an_audit_log_that_lost_lines_alerts_though_it_works_again(tmp_path: Path) -> None:
    """Either half of the expression is enough."""
    firing = 'count(ALERTS{alertname="MaxamAuditFailed", alertstate="firing"})'
    expected = _expected([(BAD - 1, firing, 0.0), (GOOD_AGAIN - 1, firing, 1.0), (END - 1, firing, 0.0)])
    _run(tmp_path, [_test([one], ill=True, expected=expected) for one in CASES["MaxamAuditFailed"]])


def test_rules_and_configuration_are_as_prometheus_wants_them(tmp_path: Path) -> None:
    """Promtool reports nothing about the rules, nor about the configuration beside them with a client's certificate."""
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for file in (RULES, CONFIGURATION):
        shutil.copy(file, tmp_path)
    for name in re.findall(r"\w+_file: (\S+)", CONFIGURATION.read_text()):
        (tmp_path / name).touch()
    checked = promtool("check", "config", tmp_path / CONFIGURATION.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", CASES)
def test_every_alert_says_what_to_do(name: str) -> None:
    """It has a severity, a line with the problem, a line with the remedy, and a section in docs/operate/alerts.md."""
    fields = alerts()[name]
    assert fields["severity"] in {"page", "ticket"}
    assert "$labels.instance" in fields["summary"]
    assert len(fields["description"]) > 40
    page, _, anchor = fields["runbook_url"].rpartition("#")
    assert (page, anchor) == ("docs/operate/alerts.md", name.lower())
    sections = re.split(r"^### ", (DOCS / "alerts.md").read_text(), flags=re.MULTILINE)
    section = [one for one in sections if one.partition("\n")[0] == name]
    assert len(section) == 1, f"docs/operate/alerts.md needs one section {name}"
    assert f"({fields['severity']}" in section[0], "the section says the severity"


def test_the_page_has_no_section_without_an_alert() -> None:
    """Each section of the page explains an alert that exists."""
    assert set(re.findall(r"^### (Maxam\w+)$", (DOCS / "alerts.md").read_text(), re.MULTILINE)) == set(alerts())


def test_commands_that_are_recommended_exist() -> None:
    """Each `maxam-admin` command of the page and of the alerts exists."""
    texts = (
        (DOCS / "alerts.md").read_text()
        + RULES.read_text()
        + "".join(panel.get("description", "") for panel in panels())
    )
    recommended = set(re.findall(r"`maxam-admin ([a-z][a-z -]*)`", texts))
    assert len(recommended) > 10
    for line in sorted(recommended):
        command: click.Command | None = main
        for word in line.split():
            if word.startswith("--"):
                assert command is not None
                assert any(word in option.opts for option in command.params), line
            else:
                assert isinstance(command, click.Group), line
                command = command.get_command(click.Context(command), word)
                assert command is not None, line
