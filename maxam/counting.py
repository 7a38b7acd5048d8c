"""Numbers of things in texts for people."""


def counted(number: float, what: str, form: str = "") -> str:
    """Return a number with its noun in the singular or the plural, such as `2 topics`.

    Args:
        number: The number.
        what: The noun in the singular, such as `topic` or `rejected SEND`.
        form: Format specification of the number, as of `format`.
    """
    if number == 1:
        many = what
    elif what.endswith("y") and what[-2:-1] not in {"a", "e", "o", "u"}:
        many = what[:-1] + "ies"
    else:
        many = what + "s"
    return f"{number:{form}} {many}"
