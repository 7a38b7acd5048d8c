"""Content and errors of `maxam.toml`, which docs/operate/configuration.md describes alike."""

import ast
import os
import re
import socket
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from maxam.config import _RENAMED, Limits, Settings, deprecated_keys, load_settings
from maxam.errors import ConfigurationError
from maxam.web_config import JwtSettings

ROOT = Path(__file__).parents[2]
TREE = Path(os.environ.get("MAXAM_TREE", ROOT))  # what is installed is tested beside a copy without sources
PAGE = (ROOT / "docs" / "operate" / "configuration.md").read_text()

MINIMAL = """
[tls]
certificate = "server.pem"
key = "server.key"
client_ca = "ca.pem"
[policy]
file = "policy.toml"
[schemas]
folder = "schemas"
"""


def _load(text: str) -> Settings:
    return load_settings(text, "maxam.toml", Path("/etc/maxam"))


def test_everything_has_a_default_but_tls_policy_and_schemas() -> None:
    """Five keys make a configuration, and paths are relative to the file's folder."""
    settings = _load(MINIMAL)
    assert settings.listener.port == 61614
    assert settings.listener.virtual_hosts == ("MAXVAPI",)
    assert settings.listener.heart_beat_ms == 10_000
    assert settings.policy.unknown_clients == "refuse"
    assert settings.journal.durability == "fsync"
    assert settings.tls.crl is None
    assert settings.tls.key == Path("/etc/maxam/server.key")
    assert settings.journal.folder == Path("/etc/maxam/var/journal")
    assert settings.limits == Limits()


@pytest.mark.parametrize("target", ["tcp://collector.example:601", "udp://127.0.0.1:514", "tcp://[::1]:601"])
def test_a_collector_of_syslog_has_a_name_and_a_port(target: str) -> None:
    """Over TCP or UDP, by a name or an address."""
    assert _load(f"{MINIMAL}[audit]\nsyslog = '{target}'\n").audit.syslog == target


def test_absolute_paths_stay() -> None:
    """An absolute path does not depend on where the file is."""
    settings = _load(MINIMAL + '[journal]\nfolder = "/srv/journal"\n')
    assert settings.journal.folder == Path("/srv/journal")


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_limit_can_be_set_to_its_default(name: str) -> None:
    """Each limit is a key of `[limits]`, and its default lies within its own range."""
    value = getattr(Limits(), name)
    assert getattr(_load(f"{MINIMAL}[limits]\n{name} = {value}\n").limits, name) == value


def test_whole_seconds_are_numbers_of_seconds() -> None:
    """A limit in seconds takes a whole number too."""
    limits = _load(MINIMAL + "[limits]\nsession_expiry_s = 60\n").limits
    assert limits.session_expiry_s == 60.0
    assert type(limits.session_expiry_s) is float


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["[tls] certificate", "missing", "add it"]),
        ("= 1", ["not valid TOML", "line 1"]),
        (MINIMAL + "[listner]\nport = 1", ["unknown section [listner]", "did you mean 'listener'?"]),
        (MINIMAL + "[listener]\nprot = 1", ["unknown key [listener] prot", "did you mean 'port'?"]),
        (MINIMAL + "[limits]\nqqq = 1", ["unknown key [limits] qqq", "known: frame_headers_max"]),
        (MINIMAL + '[listener]\nport = "61614"', ["[listener] port", "whole number without quotes", "'61614'"]),
        (MINIMAL + "[listener]\nport = true", ["[listener] port", "whole number", "True"]),
        (MINIMAL + "[listener]\nport = 65536", ["[listener] port", "0 to 65535", "65536"]),
        (MINIMAL + "[listener]\nport = 1.0", ["[listener] port", "whole number", "1.0"]),
        (MINIMAL + "[listener]\nheart_beat_ms = 9999", ["[listener] heart_beat_ms", "10000"]),
        (MINIMAL + "[listener]\nvirtual_hosts = []", ["[listener] virtual_hosts", "at least one"]),
        (MINIMAL + '[listener]\nvirtual_hosts = "MAXVAPI"', ["[listener] virtual_hosts", "a list of texts"]),
        (MINIMAL + "[listener]\nvirtual_hosts = [1]", ["[listener] virtual_hosts", "a list of texts"]),
        (MINIMAL + "[admin]\nhosts = ['https://a.b']", ["[admin] hosts", "without scheme and port", "https://a.b"]),
        (MINIMAL + "[admin]\nhosts = ['a.b:8643']", ["[admin] hosts", "without scheme and port"]),
        (MINIMAL + "[admin]\nhosts = ['*.*.b']", ["[admin] hosts", "one label more"]),
        (MINIMAL + "[audit]\nsyslog = 'collector:514'", ["[audit] syslog", "tcp://HOST:PORT", "collector:514"]),
        (MINIMAL + "[audit]\nsyslog = 'tls://collector:514'", ["[audit] syslog", "udp://HOST:PORT"]),
        (MINIMAL + "[listener]\nhost = 1", ["[listener] host", "a text in quotes"]),
        (MINIMAL + '[journal]\ndurability = "fsnyc"', ["[journal] durability", "'fsync' or 'none'", "mean 'fsync'?"]),
        (MINIMAL + '[journal]\nfolder = ""', ["[journal] folder", "the path of a file or folder"]),
        (MINIMAL + "[limits]\nwindow = 0", ["[limits] window", "1 to 100000", "found 0"]),
        (MINIMAL + "[limits]\ntopics_max = 0", ["[limits] topics_max", "at least 1"]),
        (MINIMAL + "[limits]\nwrite_timeout_s = 0", ["[limits] write_timeout_s", "above 0"]),
        (MINIMAL + "[limits]\nwrite_timeout_s = nan", ["[limits] write_timeout_s", "above 0", "nan"]),
        (MINIMAL + "[limits]\nwrite_timeout_s = inf", ["[limits] write_timeout_s", "below 2^53", "inf"]),
        (MINIMAL + "[limits]\nframe_body_bytes_max = -1", ["[limits] frame_body_bytes_max", "1024 to"]),
        (
            MINIMAL + "[limits]\ndestination_bytes_max = 9000",
            ["destination_bytes_max = 9000", "could never be reached"],
        ),
        ("listener = 1\n" + MINIMAL, ["listener", "expected a section [listener]"]),
        ("[[listener]]\nport = 1\n" + MINIMAL, ["listener", "expected a section [listener]"]),
    ],
)
def test_errors_name_file_key_fault_and_remedy(text: str, parts: list[str]) -> None:
    """Each error has the file, the key, the expected value and the value that was found."""
    with pytest.raises(ConfigurationError) as caught:
        _load(text)
    assert str(caught.value).startswith("maxam.toml:")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tls]\ncertificate = \n", 2),
        (MINIMAL + "\n\n[limits]\n# more\nwindow = 0\n", 5),
        (MINIMAL + "\n[limits]\nwindow = 5\nwidnow = 5\n", 4),
        (MINIMAL + "\n[limts]\n", 2),
        (MINIMAL + "\n[listener]\n'a b' = 1\n", 3),
        (MINIMAL + "\n[limits]\ndestination_bytes_max = 9000\n", 3),
        (MINIMAL + "\n[enrolment]\nfolder = 'x'\n", 3),
    ],
)
def test_errors_have_the_line(text: str, line: int) -> None:
    """The line follows the name of the file."""
    lines = (MINIMAL.count("\n") if text.startswith(MINIMAL) else 0) + line
    with pytest.raises(ConfigurationError, match=rf"^maxam\.toml:{lines}: "):
        _load(text)


@pytest.mark.parametrize("old", _RENAMED)
def test_an_old_key_sets_the_new_one(old: str) -> None:
    """An old key works, is reported with its new name and line, obeys the new one's range, and is an error beside it."""
    section, _, name = old.partition(".")
    now = _RENAMED[old]
    text = f"{MINIMAL}[{section}]\n{name} = 1\n"
    assert getattr(getattr(_load(text), section), now) == 1
    lines = text.count("\n")
    assert deprecated_keys(text) == [(f"[{section}] {name}", now, lines)]
    assert deprecated_keys(text.replace(name, now)) == []
    with pytest.raises(ConfigurationError, match=rf"^maxam\.toml:{lines}: \[{section}\] {name}: "):
        _load(text.replace("= 1", "= -1"))
    with pytest.raises(ConfigurationError, match=rf"^maxam\.toml:{lines}: \[{section}\] {name}: .*{now}"):
        _load(text + f"{now} = 1\n")
    assert f"| `[{section}]` `{name}` | `{now}` |" in PAGE


def test_a_key_that_is_missing_has_the_line_of_its_section() -> None:
    """Without the section there is no line."""
    with pytest.raises(ConfigurationError, match=r"^maxam\.toml:2: \[tls\]"):
        _load('\n[tls]\nkey = "k"\n')
    with pytest.raises(ConfigurationError, match=r"^maxam\.toml: \[tls\]"):
        _load("")


def _row(section: str, key: str) -> str:
    """Return the page's row of a key."""
    prefix = f"{section}." if section in {"policy", "schemas"} else ""
    outer = section.partition(".")[0]
    told = next(part for part in PAGE.split("\n## ") if f"`[{outer}]`" in part.partition("\n")[0])
    return next((line for line in told.splitlines() if line.startswith(f"| `{prefix}{key}` |")), "")


SECTIONS = {name: (get_args(hint) or [hint])[0] for name, hint in get_type_hints(Settings).items()} | {
    "web.jwt": JwtSettings
}


def test_every_key_is_documented() -> None:
    """docs/operate/configuration.md has a row for each key, with its default where that is a number or a text."""
    for section, kind in SECTIONS.items():
        for key in fields(kind):
            if f"{section}.{key.name}" in SECTIONS:
                continue
            row = _row(section, key.name.removesuffix("_"))
            assert row, f"{section}.{key.name}"
            if isinstance(key.default, bool):
                assert f"`{str(key.default).lower()}`" in row
            elif isinstance(key.default, int | float):
                assert f"{key.default:g}" in row or f"{key.default}" in row


BOUNDS = {
    f"{section}.{one.name}": one.metadata["bounds"]
    for section, kind in SECTIONS.items()
    for one in fields(kind)
    if "bounds" in one.metadata
}


@pytest.mark.parametrize("key", BOUNDS)
def test_every_range_is_documented(key: str) -> None:
    """The row of a key with a range of its own has both ends, the higher one in digits or as a power of two."""
    low, high, _ = BOUNDS[key]
    said = re.search(rf"\b{low} to (2\^)?(\d+)\b", _row(*key.split(".")))
    assert said is not None
    assert (2 ** int(said[2]) if said[1] else int(said[2])) == high


# Where the event of a line is a variable: what it may be.
CHOSEN = {
    "maxam/gateway/member.py": {
        *("placed", "following", "copying", "leading", "claim-failed", "handover", "handover-failed", "superseded"),
        *("differs", "cut-off", "handed-over", "log-lost", "log-back", "log-damaged", "log-full"),
    },
    "maxam/bridge/process.py": {
        f"bridge-{event}" for event in ("drill-done", "link-rejected", "loop", "not-allowed", "refused", "rejected")
    },
    "maxam/api/listener.py": {
        f"{listener}-connection-{end}" for listener in ("admin", "enrolment") for end in ("failed", "refused")
    },
}


def test_every_event_of_the_log_is_documented() -> None:
    """The page has a row for each event that the gateway logs, with every key that a line of it may have, and no other."""
    logged: dict[str, set[str]] = defaultdict(set)
    for path in (TREE / "maxam").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in ast.walk(ast.parse(text)) if re.search(r"\blog_(event|bug)\(", text) else ():
            match call:
                case ast.Call(func=ast.Name(id="log_event"), args=[_, event]):
                    pass
                case ast.Call(func=ast.Name(id="log_bug"), args=[event, _]):
                    pass
                case _:
                    continue
            match event:
                case ast.Constant(value=str(name)):
                    logged[name] |= {keyword.arg for keyword in call.keywords if keyword.arg}
                case _:
                    logged |= {name: set() for name in CHOSEN[path.relative_to(TREE).as_posix()]}
    told = {"library": set[str]()}  # what logs it is a formatter
    for row in PAGE.partition("\n## Log\n")[2].splitlines():
        if row.startswith("| `"):
            events, _, keys, _ = row.strip("|").split("|")
            told |= {name: set(re.findall(r"\w+", keys)) for name in re.findall(r"`([\w-]+)`", events)}
    assert sorted(told) == sorted({*logged, "library"})
    assert {name: keys - told[name] for name, keys in logged.items() if keys - told[name]} == {}


def test_links_are_off_unless_their_sections_are_there() -> None:
    """An empty [link] has its defaults; [follow] needs its key."""
    assert _load(MINIMAL).link is None
    assert _load(MINIMAL).follow is None
    link = _load(MINIMAL + "[link]\n").link
    assert link is not None
    assert (link.port, link.certificate) == (8646, None)
    follow = _load(MINIMAL + '[follow]\nfrom = ["a.example:8646", "[::1]:1"]\n').follow
    assert follow is not None
    assert follow.from_ == ("a.example:8646", "[::1]:1")


FRONT = """
[front]
from = ["gateway-a.example:8646", "[::1]:1"]
[tls]
certificate = "server.pem"
key = "server.key"
client_ca = "ca.pem"
"""


def test_a_front_on_another_machine_needs_a_gateway_and_certificates() -> None:
    """Its listener, link and log are its own. Paths are relative to the file's folder."""
    front = _load(FRONT + '[listener]\nport = 1\n[link]\nca = "link.pem"\n[log]\nformat = "json"\n').front
    assert front is not None
    assert front.from_ == ("gateway-a.example:8646", "[::1]:1")
    assert front.folder == Path("/etc/maxam/var/front")
    assert _load(MINIMAL).front is None


@pytest.mark.parametrize(
    "text",
    [
        FRONT + "[limits]\n",
        FRONT + "[policy]\nfile = 'policy.toml'\n",
        FRONT + "[fronts]\ncount = 1\n",
        FRONT + "[admin]\n",
        FRONT.replace("gateway-a.example:8646", "gateway-a.example"),
        FRONT.replace("from = ", "form = "),
    ],
)
def test_a_front_has_no_settings_of_a_gateway(text: str) -> None:
    """The error has the line of the section or key."""
    with pytest.raises(ConfigurationError, match=r"^maxam\.toml:\d+: (unknown key )?\["):
        _load(text)


CLUSTER = """
[link]
[cluster]
name = "venue-7"
endpoints = ["https://10.0.0.1:2379", "https://etcd.example:2379"]
ca = "ca.pem"
certificate = "c.pem"
key = "k.pem"
"""


def test_a_cluster_has_defaults_and_the_name_of_the_host() -> None:
    """A member is named after its host, and reached there."""
    assert _load(MINIMAL).cluster is None
    cluster = _load(MINIMAL + CLUSTER).cluster
    assert cluster is not None
    assert (cluster.lease_s, cluster.cut_off_s, cluster.copies_min) == (2.5, 10.0, 2)
    assert cluster.own_name == cluster.own_host == socket.gethostname()
    named = _load(MINIMAL + CLUSTER + 'member = "a"\nhost = "10.0.0.7"\ncut_off_s = 0\nlog_keep_s = 1\n').cluster
    assert named is not None
    assert (named.own_name, named.own_host, named.cut_off_s) == ("a", "10.0.0.7", 0.0)


@pytest.mark.parametrize(
    "text",
    [
        CLUSTER.replace("[link]", ""),
        CLUSTER + "[follow]\nfrom = ['a:1']\n",
        CLUSTER.replace("venue-7", "Venue 7"),
        CLUSTER.replace("venue-7", "v" * 33),
        CLUSTER.replace("https://10", "http://10"),
        CLUSTER.replace(":2379", ""),
        CLUSTER.replace('ca = "ca.pem"\n', ""),
        *(
            f"{CLUSTER}{one}\n"
            for one in (
                "member = 'a b'",
                "host = 'a/b'",
                "priority = 1001",
                "lease_s = 0.5",
                "lease_s = 11",
                "cut_off_s = 16",
                "log_keep_s = 39",
                "copies_min = 0",
                "block_bytes_max = 1",
                "log_bytes_max = 1",
            )
        ),
    ],
)
def test_a_mistaken_cluster_is_refused_with_its_line(text: str) -> None:
    """The place of the mistake is in the error."""
    with pytest.raises(ConfigurationError, match=r"^maxam\.toml:\d+: \[(cluster|follow)\]"):
        _load(MINIMAL + text)


@pytest.mark.parametrize(
    "text",
    [
        "[follow]\n",
        "[follow]\nfrom_ = ['a:1']\n",
        "[follow]\nfrom = []\n",
        *(
            f"[follow]\nfrom = ['{one}']\n"
            for one in ("a", "a:", ":1", "a:0", "a:65536", "::1:1", " a:1", "[::1]", "[a:1")
        ),
        "[link]\nkey = 'k.pem'\n",
        "[link]\ncrl = 'crl.pem'\n",
        "[link]\n[limits]\nframe_body_bytes_max = 67108865\n",
        "[link]\ncertificate = 'c.pem'\n",
        "[link]\ncopy_bytes_per_s_max = 1\n",
    ],
)
def test_a_mistaken_link_is_refused_with_its_line(text: str) -> None:
    """The place of the mistake is in the error."""
    with pytest.raises(ConfigurationError, match=r"^maxam\.toml:\d+: (unknown key )?\[(link|follow|limits)\]"):
        _load(MINIMAL + text)
