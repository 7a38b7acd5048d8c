"""Numbers of things in texts for people."""


def counted(number: float, what: str, form: str = "") -> str:
    """Return a number and what it is of, in the singular or the plural.

    Args:
        number: How many.
        what: One of it, such as `topic` or `rejected SEND`.
        form: How the number is written, as of `format`.
    """
    if number == 1:
        many = what
    elif what.endswith("y") and what[-2:-1] not in {"a", "e", "o", "u"}:
        many = what[:-1] + "ies"
    else:
        many = what + "s"
    return f"{number:{form}} {many}"
