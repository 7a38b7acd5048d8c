"""Reading files that others write: refused files, and paths that are exchanged meanwhile."""

import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from maxam.avro.folder import read_schema_texts
from maxam.config import Limits
from maxam.errors import ConfigurationError
from maxam.files import FILE_BYTES_MAX, places_of_file, read_file, read_folder, stamp_file, stamp_folder
from tests.support.patience import PATIENCE_S

SUFFIXES = (".avsc", ".toml")


def read(folder: Path, **limits: int) -> dict[str, bytes]:
    """Read a folder under these limits."""
    return read_folder(folder, SUFFIXES, Limits(**limits))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, and a secret beside it."""
    inner = tmp_path / "schemas"
    (inner / "a").mkdir(parents=True)
    (inner / "registry.toml").write_text("registry")
    (inner / "a" / "1.0.avsc").write_text("schema")
    (tmp_path / "secret.avsc").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "1.0.avsc").write_text("secret")
    return inner


def test_only_what_is_asked_for_is_read(folder: Path) -> None:
    """Other suffixes and names with a dot in front are skipped, folders like .git with all that is in them."""
    (folder / "README.md").write_text("no")
    (folder / ".hidden.avsc").write_text("no")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.avsc").write_text("no")
    os.mkfifo(folder / "pipe")
    assert read(folder) == {"registry.toml": b"registry", "a/1.0.avsc": b"schema"}


def test_the_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    """A folder that is reached over links is read as if it stood there."""
    (tmp_path / "current").symlink_to("schemas")
    (tmp_path / "now").symlink_to(tmp_path / "current")
    assert read(tmp_path / "now") == read(folder)


def test_links_may_lead_to_what_is_inside(tmp_path: Path) -> None:
    """The layout of a Kubernetes mount is read: files and folders are links over `..data` to a folder with a dot in front."""
    mount = tmp_path / "mount"
    (mount / "..2026_11" / "a").mkdir(parents=True)
    (mount / "..2026_11" / "registry.toml").write_text("registry")
    (mount / "..2026_11" / "a" / "1.0.avsc").write_text("schema")
    (mount / "..data").symlink_to("..2026_11")
    (mount / "registry.toml").symlink_to("..data/registry.toml")
    (mount / "a").symlink_to("..data/a")
    assert read(mount) == {"registry.toml": b"registry", "a/1.0.avsc": b"schema"}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_fifo, "is a named pipe"),
        (_socket, "is a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "leads out of"),
        (lambda path: path.symlink_to("../secret.avsc"), "leads out of"),
        (lambda path: path.symlink_to("../../../../../../../../../../etc/passwd"), "leads out of"),
        (lambda path: path.symlink_to("../secrets"), "leads out of"),
        (lambda path: path.symlink_to(path), "a loop of links"),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
        (lambda path: path.symlink_to("."), "leads back"),
        (lambda path: path.symlink_to("a"), None),  # a second name of a folder inside
    ],
)
def test_what_is_no_file_inside_is_refused(folder: Path, make: Callable[[Path], None], told: str | None) -> None:
    """Pipes, sockets, devices, links that lead out, round or nowhere are refused by name, without a wait and without a read."""
    make(folder / "bad.avsc")
    if told is None:
        assert "bad.avsc/1.0.avsc" in read(folder)
        return
    with pytest.raises(ConfigurationError, match=r"bad\.avsc") as refused:
        read(folder)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value).replace("secrets", "")


def test_a_folder_that_is_a_link_may_not_lead_out(folder: Path, tmp_path: Path) -> None:
    """A linked folder outside is refused, whatever it is called, and so is one that leads round."""
    (folder / "b").symlink_to(tmp_path / "secrets")
    with pytest.raises(ConfigurationError, match="leads out of"):
        read(folder)
    (folder / "b").unlink()
    (folder / "a" / "up").symlink_to("..")
    with pytest.raises(ConfigurationError, match="leads back"):
        read(folder)


def test_size_and_number_are_limited(folder: Path) -> None:
    """A file too large, files too many and bytes too many are refused, each by the limit's name."""
    with pytest.raises(ConfigurationError, match="limit schema_files_max"):
        read(folder, schema_files_max=2)
    with pytest.raises(ConfigurationError, match="limit schema_bytes_max"):
        read(folder, schema_bytes_max=13)
    with (folder / "large.avsc").open("wb") as large:
        large.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(ConfigurationError, match=r"large\.avsc is larger than"):
        read(folder)


def test_folders_in_folders_end_at_the_limit(folder: Path) -> None:
    """However deep somebody nests folders, reading them takes neither the stack nor all descriptors."""
    folder.joinpath(*["b"] * 65).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="nested deeper than 64"):
        read(folder)
    assert "nested deeper" in str(stamp_folder(folder, SUFFIXES, Limits())[0])


@pytest.fixture
def nobody() -> Iterator[None]:
    """Somebody to whom permissions apply."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.usefixtures("nobody")
def test_what_nobody_may_look_into_is_told() -> None:
    """A folder without permissions is a ConfigurationError that shows it, wherever it is; no types are skipped."""
    with tempfile.TemporaryDirectory() as parent:
        schemas = Path(parent) / "schemas"
        (schemas / "a").mkdir(parents=True)
        (schemas / "registry.toml").write_text("")
        (schemas / "lost+found").mkdir(mode=0)
        assert list(read_schema_texts(schemas)) == ["registry.toml"]
        for closed in (schemas / "a", schemas, schemas.parent):
            closed.chmod(0)
            with pytest.raises(ConfigurationError, match=os.strerror(errno.EACCES)):
                read_schema_texts(schemas)
            stamp_folder(schemas, SUFFIXES, Limits())
            closed.chmod(0o755)


def test_links_that_multiply_end_at_the_limit(folder: Path) -> None:
    """Twenty folders, each with two links to the next, are a million paths: the number of entries bounds the scan."""
    for at in range(20):
        (folder / f"d{at}").mkdir()
    for at in range(19):
        (folder / f"d{at}" / "x").symlink_to(f"../d{at + 1}")
        (folder / f"d{at}" / "y").symlink_to(f"../d{at + 1}")
    with pytest.raises(ConfigurationError, match="limit schema_files_max"):
        read(folder, schema_files_max=1000)


def test_exchanging_a_link_while_it_is_read_gives_nothing_away(folder: Path, tmp_path: Path) -> None:
    """However a path flips between a file inside and one outside, what is read is the file inside, or nothing."""
    inside, outside = folder / "a" / "1.0.avsc", tmp_path / "secret.avsc"
    flipping = folder / "flip.avsc"
    flipping.symlink_to(inside)
    stop = threading.Event()

    def flip() -> None:
        spare = tmp_path / "spare"
        while not stop.is_set():
            for target in (outside, inside):
                spare.symlink_to(target)
                spare.replace(flipping)

    thread = threading.Thread(target=flip)
    thread.start()
    refused = tried = 0
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while tried < 100 or not refused:  # until then nothing was tried
            assert time.monotonic() < deadline_s
            tried += 1
            try:
                texts = read(folder)
            except ConfigurationError:
                refused += 1
            else:
                assert texts["flip.avsc"] == b"schema"
    finally:
        stop.set()
        thread.join()


def test_a_folder_is_read_as_it_was_at_one_moment(tmp_path: Path) -> None:
    """While files are rewritten all the time, what is read is of one moment, or the folder is refused as restless."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    names = [f"{at}.avsc" for at in range(20)]
    stop = threading.Event()
    for name in names:
        (folder / name).write_text("0")

    def write() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            for name in names:
                (folder / "new").write_text(str(version))
                (folder / "new").replace(folder / name)
            stop.wait(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(50):
            try:
                versions = [int(text) for text in read(folder).values()]
            except ConfigurationError as error:
                assert "keeps changing" in str(error)  # noqa: PT017  # either is right
            else:
                # Files are renamed one after the other: at any one moment there are at most two versions, next to each other.
                assert max(versions) - min(versions) <= 1
    finally:
        stop.set()
        thread.join()


def test_a_single_file_may_be_anywhere_but_is_a_file(tmp_path: Path) -> None:
    """The path of a setting is followed over links, and refused without a wait when it is a pipe, a device or a folder."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link", "[x] y", "correct it") == b"text"
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a named pipe"), (Path("/dev/null"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(ConfigurationError, match=rf"\[x\] y: .* is {kind}, expected a file; correct it"):
            read_file(path, "[x] y", "correct it")


def test_a_mark_changes_with_whatever_changes(folder: Path, tmp_path: Path) -> None:
    """Writing, renaming, removing and leading a link elsewhere each give another mark; reading gives the same."""
    (tmp_path / "current").symlink_to(folder.name)
    path = tmp_path / "current" / "registry.toml"
    marks = {stamp_file(path)}
    folders = {stamp_folder(tmp_path / "current", SUFFIXES, Limits())[0]}

    def changed(by: Callable[[], object]) -> None:
        for found, mark in (
            (marks, stamp_file(path)),
            (folders, stamp_folder(tmp_path / "current", SUFFIXES, Limits())[0]),
        ):
            assert mark in found  # reading changes nothing
        by()
        for found, mark in (
            (marks, stamp_file(path)),
            (folders, stamp_folder(tmp_path / "current", SUFFIXES, Limits())[0]),
        ):
            assert mark not in found
            found.add(mark)

    changed(lambda: path.write_text("longer than it was"))
    changed(path.unlink)
    changed(lambda: path.write_text("back"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "registry.toml").write_text("back")
    (tmp_path / "next").symlink_to("other")
    changed(lambda: (tmp_path / "next").replace(tmp_path / "current"))


def test_every_link_on_the_way_is_watched(folder: Path, tmp_path: Path) -> None:
    """The paths to watch are the links that a path leads over and its end, so that a changed link is noticed."""
    (tmp_path / "current").symlink_to("schemas")
    (folder / "link.toml").symlink_to("registry.toml")
    places = places_of_file(tmp_path / "current" / "link.toml")
    assert places.names >= {
        str(tmp_path / "current"),
        str(tmp_path / "schemas" / "link.toml"),
        str(tmp_path / "schemas" / "registry.toml"),
    }
    assert stamp_folder(tmp_path / "current", SUFFIXES, Limits())[1].folders == {str(folder), str(folder / "a")}


def test_where_a_mistake_is_it_is_watched(folder: Path) -> None:
    """A folder that cannot be read for what is in it is watched nevertheless: there it will be repaired."""
    os.mkfifo(folder / "a" / "1.1.avsc")
    assert stamp_folder(folder, SUFFIXES, Limits())[1].folders == {str(folder), str(folder / "a")}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_folder_that_fails_while_it_is_read_is_a_state_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An error of the file system refuses the folder, and its mark differs from that of the readable folder."""
    before, _ = stamp_folder(folder, SUFFIXES, Limits())

    def fails(_descriptor: int) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(ConfigurationError, match=os.strerror(number)):
        read(folder)
    mark, places = stamp_folder(folder, SUFFIXES, Limits())
    assert mark != before
    assert str(folder) in places.folders
