"""The extras of `pip install 'percola[…]'`: what is said where one is not installed."""

from __future__ import annotations


def missing(what: str, error: ImportError, *extras: str) -> str:
    """The sentence for a package that could not be imported.

    Args:
        what: what needs it, as the sentence begins.
        error: what the import raised.
        extras: those that bring what is needed.
    """
    if (error.name or "percola").partition(".")[0] == "percola":
        return f"This installation of Percola is not whole ({error}): install it again."
    return (
        f"{what} needs the Python package {error.name}: install it with "
        f"pip install 'percola[{','.join(extras)}]'."
    )
