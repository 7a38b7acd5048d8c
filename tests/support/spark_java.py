"""The Java that runs Spark in tests, where it lives for seconds.

Its optimising compiler never pays then. With an archive of the classes that Spark loads, it starts in half the time. The command
`python -m tests.support.spark_java` makes the archive. Java ignores an archive that is missing, or that is of another Java or other
jars. It may write that to the output of a job, so its log is off.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.patience import PATIENCE_S

_TREE: Final = Path(os.environ.get("MAXAM_TREE", Path(__file__).parents[2]))
_ARCHIVE: Final = _TREE / ".venv" / "spark-classes.jsa"
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OPTIONS: Final = f"{_QUICK} -Xlog:disable -XX:SharedArchiveFile={_ARCHIVE}" if _ARCHIVE.exists() else _QUICK
_PROGRAM: Final = """
import sys
from maxam.pipeline.spark.session import open_session

session = open_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"}, app="classes")
values = session.range(0, 1000, 1, 2).mapInArrow(lambda batches: batches, "id long")
values.groupBy((values.id % 7).alias("rest")).count().orderBy("rest").write.parquet(sys.argv[1])
session.read.parquet(sys.argv[1]).createOrReplaceTempView("counts")
session.sql("SELECT rest, sum(count) FROM counts JOIN range(7) ON rest = id GROUP BY rest").collect()
session.stop()
"""


def main() -> int:
    """Make the archive by a small job, and return 0, or 1 if Spark does not run here. Raises TimeoutExpired."""
    new = _ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    options = f"{_QUICK} -XX:ArchiveClassesAtExit={new}"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, f"{folder}/counts"],
            env=os.environ | {"SPARK_SUBMIT_OPTS": options},
            capture_output=True,  # it ends when Java ends, which is later than the program
            check=False,
            timeout=PATIENCE_S,
        )
    if not new.exists():
        return 1
    new.rename(_ARCHIVE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
