"""Fixtures of the pipeline's tests: the Spark session, and a clone for guides."""

import json
import os
import shutil
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.session import open_session
from tests.support.spark_java import OPTIONS

REPOSITORY = Path(__file__).parents[2]

os.environ.setdefault("SPARK_SUBMIT_OPTS", OPTIONS)  # for every Spark that a test starts, here or as a process


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start Spark once, small and quick; without a Java, skip loudly, but fail where CI runs."""
    try:
        session = open_session(
            "local[2]",
            conf={
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
            },
            app="maxam-tests",
        )
    except PipelineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Spark: {error}")
    yield session
    session.stop()


@pytest.fixture
def clone(tmp_path: Path, certificates: Path) -> Path:
    """Lay out what a clone has after `make run`, except the gateway."""
    folder = tmp_path / "clone"
    (folder / "var").mkdir(parents=True)
    (folder / "gateway").mkdir()
    shutil.copytree(REPOSITORY / "schemas", folder / "schemas")
    (folder / "docs").mkdir()
    (folder / "docs" / "examples").symlink_to(REPOSITORY / "docs" / "examples")
    (folder / "certs-dev").symlink_to(certificates)
    fingerprints = json.loads((certificates / "fingerprints.json").read_text(encoding="utf-8"))
    template = (REPOSITORY / "certs-dev" / "policy-dev.template.toml").read_text(encoding="utf-8")
    (folder / "policy-dev.toml").write_text(string.Template(template).substitute(fingerprints), encoding="utf-8")
    (folder / "var" / "journal").symlink_to(folder / "gateway" / "journal")
    return folder
