"""SOURCES: what a gateway sends its fronts, so that they judge clients by its files.

A line of JSON, then the contents of the files. `contents` in it lists name and size of each file of each item, in the order of the
bytes. A front on another machine gets neither the gateway's certificates nor the keys of its pages: it has a certificate of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from maxam.cluster import wire
from maxam.config import FrontsSettings, Limits, Settings
from maxam.gateway.loaded_config import CLIENT_CA, CRL, POLICY, SCHEMAS, Content

FRONT_RIGHT: Final = "front"  # of a front on another machine, beside `replicate`
REMOTE_ITEMS: Final = (POLICY, SCHEMAS, CLIENT_CA, CRL)  # sent to other machines
_LISTENER: Final = ("virtual_hosts", "heart_beat_ms", "client_individual")
_TLS: Final = ("crl_expired", "minimum")


def encode_sources(facts: Mapping[str, Any], contents: Mapping[str, Content]) -> bytes:
    """Return the frame of a SOURCES."""
    sizes = {item: [(name, len(text)) for name, text in one.texts.items()] for item, one in contents.items()}
    head = json.dumps({**facts, "contents": sizes}).encode()
    return wire.frame(
        wire.SOURCES, b"".join((head, b"\n", *(text for one in contents.values() for text in one.texts.values())))
    )


def read_sources(body: bytes) -> tuple[dict[str, Any], dict[str, Content]]:
    """Return facts and contents of a SOURCES. Raises WireError."""
    head, _, rest = body.partition(b"\n")
    contents = {}
    place = 0
    try:
        facts: dict[str, Any] = json.loads(head)
        for item, files in facts.pop("contents").items():
            texts: dict[str, bytes] = {}
            for name, size in files:
                texts[name] = rest[place : place + size]
                place += size
            contents[item] = Content(texts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise wire.WireError(f"the sources of a front are garbled: {error}") from None
    if place != len(rest):
        raise wire.WireError("the sources of a front are cut short")
    return facts, contents


def facts_of(settings: Settings) -> dict[str, Any]:
    """Return the settings of a gateway that hold at its fronts on other machines."""
    return {
        "limits": asdict(settings.limits),
        "listener": {name: getattr(settings.listener, name) for name in _LISTENER},
        "tls": {name: getattr(settings.tls, name) for name in _TLS},
        "unknown_clients": settings.policy.unknown_clients,
    }


def settings_at_front(own: Settings, facts: Mapping[str, Any], contents: Mapping[str, Content]) -> Settings:
    """Return the settings of a front on another machine, with those that hold there as at its gateway.

    Args:
        own: Of the front.
        facts: As of `facts_of`, by a gateway of this release.
        contents: Of the gateway.
    """
    listener = facts["listener"] | {"virtual_hosts": tuple(facts["listener"]["virtual_hosts"])}
    crl = (own.tls.crl or Path("crl")) if contents[CRL].texts else None
    return replace(
        own,
        limits=Limits(**facts["limits"]),
        listener=replace(own.listener, **listener),
        tls=replace(own.tls, crl=crl, **facts["tls"]),
        policy=replace(own.policy, unknown_clients=facts["unknown_clients"]),
        fronts=FrontsSettings(count=1),
    )
