"""Formatting for pages: numbers, times, and text that is not ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup

from percola import inspection
from percola.cells import Cell
from percola.platform.text import printable
from percola.schema import Schema

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def finalize(value: Any) -> Any:
    """Jinja's last step before escaping: shows what is invisible in every text but our own markup.

    Row keys, tracebacks and reasons may hold any bytes.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, keep="\n\t")
    return value


def row(schema: Schema, cell: Cell) -> str:
    """A cell's row as text; its bytes if the schema cannot decode them."""
    key = inspection.decoded_row(schema, cell)
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return str(key)


def duration(seconds: float) -> str:
    """A time span in its most significant unit."""
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def age(seconds: float, at_least: bool = False) -> str:
    """How old something is: not below a second, as no time is noted more often."""
    return "under 1 s" if seconds < 1 else f"{'over ' if at_least else ''}{duration(seconds)}"


def rate(number: float | None) -> str:
    """A number per second; a dash if it is not known."""
    if number is None:
        return "–"
    return "0" if number == 0 else f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def moment(milliseconds: int) -> str:
    """A time in milliseconds since the epoch, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(number: int) -> str:
    """A number of bytes with three digits."""
    value = float(number)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
