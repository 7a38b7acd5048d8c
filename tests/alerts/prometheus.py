"""Prometheus' own tools, as Debian has them: what its rules come to, and a whole server."""

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "maxam.rules.yml"
CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "maxam.json"

_ALERT = re.compile(r"^      - alert: (\w+)\n(.*?)(?=^      - |^  - |\Z)", re.MULTILINE | re.DOTALL)
_RECORD = re.compile(r"^      - record: (\S+)\n        expr: (.*)$", re.MULTILINE)


def need(command: str) -> str:
    """Return the path of a command; skip the test where it is missing, fail where that may not be (CI=true)."""
    found = shutil.which(command)
    if found is None:
        text = f"{command} is missing: run make test-deps"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    return found


def promtool(*arguments: str | Path, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run promtool to its end, with a text for its standard input."""
    command = [need("promtool"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def alerts() -> dict[str, dict[str, str]]:
    """Return the rules' alerts by name: their expressions, durations, severities and annotations, as they are written."""
    found = {}
    for name, text in _ALERT.findall(RULES.read_text()):
        fields = dict(re.findall(r"^ +(\w+): (.+)$", text, re.MULTILINE))
        fields["severity"] = re.sub(r"\{severity: (\w+)\}", r"\1", fields["labels"])
        found[name] = fields
    return found


def recorded() -> dict[str, str]:
    """Return the expressions of the recording rules, by the series that they make."""
    return dict(_RECORD.findall(RULES.read_text()))


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels, its rows included."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    """Return everything that rules and dashboard ask Prometheus."""
    shown = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    return [*recorded().values(), *(fields["expr"] for fields in alerts().values()), *shown]


def minutes_of(fields: dict[str, str]) -> int:
    """Return for how many minutes an alert's expression must hold."""
    text = fields.get("for", "0m")
    return math.ceil(int(text[:-1]) * {"s": 1 / 60, "m": 1, "h": 60}[text[-1]])


def series(name: str, values: Sequence[float]) -> dict[str, str]:
    """Return a series for promtool, one value a minute."""
    return {"series": name, "values": " ".join(f"{value:g}" if value < 1e6 else f"{value:.0f}" for value in values)}
