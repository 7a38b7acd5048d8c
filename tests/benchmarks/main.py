"""The commands that measure this project."""

from typing import Any, Final, final

import click

from maxam.errors import MaxamError
from tests.benchmarks.compare import compare_command
from tests.benchmarks.console import console_command
from tests.benchmarks.disk import disk_command
from tests.benchmarks.estate import estate_command
from tests.benchmarks.etcd import etcd_command
from tests.benchmarks.fronts import fronts_command
from tests.benchmarks.globs import globs_command
from tests.benchmarks.grow import grow_command
from tests.benchmarks.holds import holds_command
from tests.benchmarks.large_cluster import large_cluster_command
from tests.benchmarks.observer import observer_command
from tests.benchmarks.pipeline import pipeline_command
from tests.benchmarks.recovery import recovery_command
from tests.benchmarks.refined import refined_command
from tests.benchmarks.replicated import cluster_command
from tests.benchmarks.suite import suite_command
from tests.benchmarks.tables import tables_command
from tests.benchmarks.web import web_command

_COMMANDS: Final = (
    suite_command,
    refined_command,
    compare_command,
    grow_command,
    fronts_command,
    globs_command,
    pipeline_command,
    tables_command,
    holds_command,
    console_command,
    disk_command,
    recovery_command,
    estate_command,
    etcd_command,
    cluster_command,
    large_cluster_command,
    observer_command,
    web_command,
)


@final
class _Benchmarks(click.Group):
    """Reports what stopped a command as an error without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MaxamError as error:
            raise click.ClickException(str(error)) from error


main = _Benchmarks(
    "benchmarks",
    commands={command.name or "": command for command in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
    help="Measure gateway, console, API, journal and pipeline of this project. docs/develop/bench.md explains each figure.",
)
