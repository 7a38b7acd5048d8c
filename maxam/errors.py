"""Every exception that maxam raises on purpose."""

from typing import Final, final


class MaxamError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug."""


@final
class ProtocolError(MaxamError):
    """Say that a connection broke the protocol: it gets an ERROR frame and is closed.

    Attributes:
        message: Short text of the ERROR's `message` header.
        detail: Body of the ERROR: what was wrong, what was expected, what to do.
        receipt: The `receipt` of the offending frame, unescaped UTF-8, or None.
        headers: Further headers of the ERROR, unescaped, such as `version`.
    """

    def __init__(
        self,
        message: str,
        detail: str,
        receipt: bytes | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(f"{message}: {detail}")
        self.message: Final = message
        self.detail: Final = detail
        self.receipt: Final = receipt
        self.headers: Final = headers


class ConfigurationError(MaxamError):
    """Say that a file an operator or integrator wrote cannot be used: names file, place, fault and remedy."""


@final
class PolicyError(ConfigurationError):
    """Say that a policy cannot be used.

    Attributes:
        problem: What is wrong.
        file: Name of the file; empty when the problem says it.
        place: Path into the file, such as `principals[3] ('venue-7').owns[0]`; empty for the whole.
    """

    def __init__(self, problem: str, file: str = "", place: str = "") -> None:
        super().__init__(": ".join([part for part in (file, place, problem) if part]))
        self.problem: Final = problem
        self.file: Final = file
        self.place: Final = place


@final
class SchemaError(ConfigurationError):
    """Say that a schema folder or a text in it cannot be used.

    Attributes:
        problem: What is wrong.
        file: Path of the file, relative to the folder; empty when the problem says it.
        place: Path into the file, such as `fields[2].type` or `rule[0].schema`; empty for the whole, or when the problem says it.
        line: Of that place in the file, from 1; None when nobody has looked for it, or it is about the whole file.
    """

    def __init__(self, problem: str, file: str = "", place: str = "", line: int | None = None) -> None:
        where = file if line is None else f"{file}:{line}" if file else f"line {line}"
        super().__init__(": ".join([part for part in (where, place, problem) if part]))
        self.problem: Final = problem
        self.file: Final = file
        self.place: Final = place
        self.line: Final = line


@final
class GlobError(MaxamError):
    """Say why a glob is malformed, too complex, or can match no destination."""


class JournalError(MaxamError):
    """Say that the journal cannot be read or written."""


@final
class JournalDamagedError(JournalError):
    """Say that stored bytes are not what was written.

    Attributes:
        path: The file.
        offset: Position in bytes of the first bad block.
    """

    def __init__(self, path: str, offset: int, problem: str) -> None:
        super().__init__(f"{path}: byte {offset}: {problem}")
        self.path: Final = path
        self.offset: Final = offset


@final
class DiskFullError(JournalError):
    """Say that a batch was not stored for lack of room, and that no trace of it is left."""


class ClientError(MaxamError):
    """Base of what the client raises."""
