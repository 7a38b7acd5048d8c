"""Values of JSON as YAML. Strings and numbers are those of JSON, which YAML 1.2 reads as they are, so this needs no library."""

import json
import re
from collections.abc import Iterator
from typing import Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS: Final = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))  # of YAML 1.1, in lower case


def yaml_document(value: object) -> str:
    """Return a value as one document of a YAML stream, in printable characters only."""
    return "\n".join(["---", *_lines(value)])


def _lines(value: object) -> Iterator[str]:
    """Yield the lines of a value. Those of a value within are indented by two blanks."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            name = key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS else _scalar(key)
            if _is_block(item):
                yield f"{name}:"
                yield from ("  " + line for line in _lines(item))
            else:
                yield f"{name}: {_scalar(item)}"
    elif isinstance(value, list | tuple) and value:
        for item in value:
            first, *others = _lines(item)
            yield f"- {first}"
            yield from ("  " + line for line in others)
    else:
        yield _scalar(value)


def _is_block(value: object) -> bool:
    return isinstance(value, dict | list | tuple) and len(value) > 0


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        text = json.dumps(value)
        return text if not isinstance(value, float) or "." in text else text.replace("e", ".0e")
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return f"\\U{ord(character):08x}"
