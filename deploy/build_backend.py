"""Build maxam (PEP 517): setuptools, with mypyc over the core where there is a C compiler.

MAXAM_CORE specifies the core of a wheel. With `compiled` the build fails if it cannot be compiled. `interpreted` compiles nothing.
`auto`, the default, compiles the core where it can. An editable installation runs the source tree, which never holds machine code.

`build_backend.py FOLDER` builds a wheel in a folder and prints its path. Without FOLDER the program exits with 0 if the core can
be compiled here. Otherwise it prints the reason and exits with 1.
"""

import contextlib
import io
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import setuptools
from setuptools import Extension, build_meta
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT: Final = Path(__file__).resolve().parents[1]
CORES: Final = ("auto", "compiled", "interpreted")

build_editable = build_meta.build_editable
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel


class CompleteSdist(sdist):
    """A source distribution with this file in it, so that it can be built."""

    def make_distribution(self) -> None:
        """Pack this file with what setuptools takes by itself."""
        self.filelist.append(Path(__file__).resolve().relative_to(ROOT).as_posix())
        super().make_distribution()


class ParallelBuildExt(build_ext):
    """Compile the C files of an extension on all processors; setuptools takes one after the other."""

    def build_extensions(self) -> None:
        """Build all extensions, otherwise as setuptools does."""
        one_by_one: Callable[..., list[str]] = self.compiler.compile

        def compile_all(sources: Sequence[str], *arguments: object, **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                done = threads.map(lambda source: one_by_one([source], *arguments, **options), sources)
                return [path for paths in done for path in paths]

        self.compiler.compile = compile_all
        super().build_extensions()


def build_sdist(sdist_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """Build a source distribution; return its file name."""
    del config_settings
    return _setup(["sdist", "--dist-dir", sdist_directory], [])


def build_wheel(
    wheel_directory: str, config_settings: dict[str, str] | None = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel, for this platform if the core is compiled, else for every one; return its file name."""
    del config_settings, metadata_directory
    wanted = os.environ.get("MAXAM_CORE", "auto")
    if wanted not in CORES:
        raise SystemExit(f"MAXAM_CORE is {wanted!r}: it must be one of {', '.join(CORES)}")
    missing = None if wanted == "interpreted" else what_is_missing()
    if missing is not None and wanted == "compiled":
        raise SystemExit(f"MAXAM_CORE=compiled, but the core cannot be compiled here: {missing}")
    if missing is not None:
        sys.stderr.write(f"WARNING: the core is NOT compiled ({missing}), so maxam will be several times slower\n")
    Path(ROOT / "build").mkdir(exist_ok=True)
    # In a folder of an earlier build the wheel would hold modules that were deleted since. Setuptools wants a relative path.
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=ROOT / "build") as name:
        folder = Path(name).relative_to(ROOT).as_posix()
        command = ["egg_info", "--egg-base", folder, "build", "--build-base", folder]
        command += ["bdist_wheel", "--bdist-dir", f"{folder}/wheel", "--dist-dir", wheel_directory]
        return _setup(command, [] if wanted == "interpreted" or missing is not None else _core(folder))


def what_is_missing() -> str | None:
    """Try to compile and link an extension of one line; return what that lacks, None for nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    headers = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("#include <Python.h>\nPyObject *probe(void) { return PyList_New(0); }\n", encoding="ascii")
        command = [*compiler, "-shared", "-fPIC", f"-I{headers}", str(source), "-o", f"{folder}/probe.so"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the user's compiler
        except OSError:
            return f"there is no C compiler {compiler[0]!r} (on Debian: apt-get install gcc libc6-dev python3-dev)"
    if done.returncode == 0:
        return None
    if "Python.h" in done.stderr:
        return f"{headers} lacks Python.h, the C headers of this Python (on Debian: apt-get install python3-dev)"
    return f"{compiler[0]} cannot compile one line: {done.stderr.strip()}"


def _core(folder: str) -> list[Extension]:
    from mypyc.build import mypycify  # noqa: PLC0415  # where nothing is compiled it is not needed

    sys.path.insert(0, str(ROOT))
    from maxam.compiled import MODULES  # noqa: PLC0415  # the tree's, whatever is installed

    paths = [name.replace(".", "/") + ".py" for name in MODULES]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):  # hints on speed, if all is well
            extensions: list[Extension] = mypycify(
                ["--config-file=", *paths],  # `make lint` is strict: another mypy shall not refuse a user a build
                group_name="maxam",
                multi_file=True,
                debug_level="0",
                target_dir=f"{folder}/c",
            )
    except SystemExit:
        raise SystemExit(f"mypyc cannot compile the core:\n{said.getvalue()}") from None
    for extension in extensions:
        flags = [flag for flag in extension.extra_compile_args if flag != "-Werror"]  # nor another compiler a warning
        extension.extra_compile_args = [
            *flags,
            "-fvisibility=hidden",  # calls between C files need no indirection: 2 %
            f"-ffile-prefix-map={folder}=build",  # two builds of one commit give equal bytes
            f"-ffile-prefix-map={ROOT}=maxam",
        ]
    return extensions


def _setup(command: Sequence[str], extensions: Sequence[Extension]) -> str:
    os.chdir(ROOT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "setup.py install is deprecated")  # a wheel's own step
        done = setuptools.setup(
            script_name="setup.py",  # which is not there; for messages
            script_args=["--quiet", *command],
            ext_modules=list(extensions),
            cmdclass={"build_ext": ParallelBuildExt, "sdist": CompleteSdist},
        )
    ((_, _, path),) = done.dist_files
    return Path(path).name


def _main(arguments: Sequence[str]) -> str | None:
    if not arguments:
        return what_is_missing()
    folder = Path(arguments[0]).resolve()
    name = build_wheel(str(folder))
    sys.stdout.write(f"{folder / name}\n")
    return None


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
