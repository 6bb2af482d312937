"""The extras of `pip install 'percola[…]'`: the error message when one is not installed."""

from __future__ import annotations


def missing(what: str, error: ImportError, *extras: str) -> str:
    """The error message for a package that could not be imported.

    Args:
        what: the feature that needs it, as the subject of the message.
        error: the exception of the import.
        extras: the extras that install the package.
    """
    if (error.name or "percola").partition(".")[0] == "percola":
        return f"This installation of Percola is not whole ({error}): install it again."
    return (
        f"{what} needs the Python package {error.name}: install it with "
        f"pip install 'percola[{','.join(extras)}]'."
    )
