"""`maxam-admin topics get`: show one topic and its value."""

from base64 import b64decode
from typing import Any

import click

from maxam.avro.json.decoding import ValueDecodeError, decode_value
from maxam.cli.completion import destinations
from maxam.cli.options import json_option, with_credentials
from maxam.https_client import Credentials, NotFoundError, Remote, topic_path
from maxam.records import Validation
from maxam.schema_tools.validating import read_version
from maxam.terminal.tables import print_fields, print_json, print_line, print_value


@click.command("get")
@click.argument("destination", shell_complete=destinations)
@json_option
@with_credentials
def topics_get(credentials: Credentials, destination: str, as_json: bool) -> None:
    """Show one topic and its value."""
    with Remote(credentials) as remote:
        topic = remote.get(topic_path(destination))
        if topic["value_state"] == "raw" and topic["schema"]:
            _decode_here(remote, topic)
    if as_json:
        print_json(topic)
        return
    state = topic.pop("value_state")
    value, body, headers = topic.pop("value", None), topic.pop("body", ""), topic.pop("headers", [])
    print_fields([*topic.items(), *((f"header {name}", text) for name, text in headers)])
    if state == "decoded":
        print_value(value)
    else:
        print_line(body if state == "raw" else "(the value is withheld: this certificate may not receive the topic)")


def _decode_here(remote: Remote, topic: dict[str, Any]) -> None:
    """Decode a value that the gateway left to us for its size."""
    name, minor = topic["schema"], topic["schema_version"]
    validation = Validation(topic["encoding"], name, minor, b"", topic["value_offset"], topic["value_length"])
    try:
        version = read_version(remote, name, minor)
        if topic["schema_fingerprint"] not in (version.crc_64.hex(), version.sha_256.hex()):
            return  # another schema has the name now, see `problem`
        value = decode_value(version.schema.text, b64decode(topic["body"]), validation)
    except NotFoundError:
        return
    except ValueDecodeError as error:
        topic["problem"] = str(error)
        return
    for key in ("problem", "body", "value_offset", "value_length"):
        del topic[key]
    topic |= {"value_state": "decoded", "value": value}
