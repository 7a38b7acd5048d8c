"""Every exception that maxam raises on purpose."""

from typing import ClassVar, Final, final


class MaxamError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug.

    Attributes:
        code: Stable name of the kind of error, for programs. `maxam.error_codes` has its meaning. An instance may have a narrower one.
    """

    code: ClassVar[str] = "failed"


@final
class ProtocolError(MaxamError):
    """A connection broke the protocol. It gets an ERROR frame and is closed.

    Attributes:
        message: Short text of the ERROR's `message` header.
        detail: Body of the ERROR: what was wrong, what was expected, what to do.
        receipt: The `receipt` of the offending frame, unescaped UTF-8, or None.
        headers: Further headers of the ERROR, unescaped, such as `version`.
    """

    code: ClassVar[str] = "protocol-error"

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
    """A file of an operator or integrator cannot be used. The text has file, place, fault and remedy."""

    code: ClassVar[str] = "configuration-invalid"


@final
class PolicyError(ConfigurationError):
    """A policy cannot be used.

    Attributes:
        problem: Description of the fault.
        file: Name of the file. Empty if the problem has it.
        place: Path into the file, such as `principals[3] ('venue-7').owns[0]`. Empty for the whole.
    """

    code: ClassVar[str] = "policy-invalid"

    def __init__(self, problem: str, file: str = "", place: str = "") -> None:
        super().__init__(": ".join([part for part in (file, place, problem) if part]))
        self.problem: Final = problem
        self.file: Final = file
        self.place: Final = place


@final
class SchemaError(ConfigurationError):
    """A schema folder or a text in it cannot be used.

    Attributes:
        problem: Description of the fault.
        file: Path of the file, relative to the folder. Empty if the problem has it.
        place: Path into the file, such as `fields[2].type` or `rule[0].schema`. Empty for the whole, or if the problem has it.
        line: Line of that place in the file, from 1. None if it is unknown, or the problem is about the whole file.
    """

    code: ClassVar[str] = "schema-invalid"

    def __init__(self, problem: str, file: str = "", place: str = "", line: int | None = None) -> None:
        where = file if line is None else f"{file}:{line}" if file else f"line {line}"
        super().__init__(": ".join([part for part in (where, place, problem) if part]))
        self.problem: Final = problem
        self.file: Final = file
        self.place: Final = place
        self.line: Final = line


@final
class GlobError(MaxamError):
    """A glob is malformed, too complex, or can match no destination."""

    code: ClassVar[str] = "invalid-glob"


@final
class SelectorError(MaxamError):
    """A selector is malformed, exceeds a limit, or does not fit the schemas of the destinations.

    Attributes:
        problem: Description of the fault.
        position: Character of the selector at which it lies, from 1.
        hint: Remedy, as a sentence.
    """

    code: ClassVar[str] = "invalid-selector"

    def __init__(self, problem: str, position: int, hint: str) -> None:
        super().__init__(f"character {position} of the selector: {problem}. {hint}")
        self.problem: Final = problem
        self.position: Final = position
        self.hint: Final = hint


class JournalError(MaxamError):
    """The journal cannot be read or written."""

    code: ClassVar[str] = "journal-failed"


@final
class JournalDamagedError(JournalError):
    """Stored bytes differ from those that were written.

    Attributes:
        path: The file.
        offset: Position in bytes of the first damaged block.
    """

    code: ClassVar[str] = "journal-damaged"

    def __init__(self, path: str, offset: int, problem: str) -> None:
        super().__init__(f"{path}: byte {offset}: {problem}")
        self.path: Final = path
        self.offset: Final = offset


@final
class DiskFullError(JournalError):
    """A batch was not stored for lack of room, and no trace of it is left."""

    code: ClassVar[str] = "disk-full"


class ClientError(MaxamError):
    """Base of what the client raises."""

    code: ClassVar[str] = "client-failed"


def first_error(error: BaseException) -> BaseException:
    """Return the first error in a group of groups, or an error that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
