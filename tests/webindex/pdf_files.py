"""PDF documents for tests, ordinary and hostile, written here object by object."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

# The first character of the font is a ligature.
_WRITTEN = str.maketrans({"\N{LATIN SMALL LIGATURE FI}": "\x01", "(": r"\(", ")": r"\)"})

Stream = tuple[str, bytes]


def pdf(objects: Mapping[int, str | Stream], *, trailer: str = "/Root 1 0 R") -> bytes:
    """A document of these objects by number; a stream is its dictionary's entries and its bytes."""
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    at = {}
    for number, content in sorted(objects.items()):
        at[number] = len(out)
        out += f"{number} 0 obj\n".encode()
        if isinstance(content, str):
            out += content.encode("latin-1")
        else:
            entries, data = content
            out += f"<< {entries} /Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream"
        out += b"\nendobj\n"
    table = len(out)
    size = max(objects) + 1
    out += f"xref\n0 {size}\n0000000000 65535 f \n".encode()
    for number in range(1, size):
        known = number in at
        out += f"{at.get(number, 0):010} 00000 {'n' if known else 'f'} \n".encode()
    out += f"trailer\n<< /Size {size} {trailer} >>\n".encode("latin-1")
    out += f"startxref\n{table}\n%%EOF\n".encode()
    return bytes(out)


def drawn(*columns: Sequence[str]) -> bytes:
    """The contents of a page: lines of text in columns side by side, each written to its end."""
    found = []
    for number, lines in enumerate(columns):
        found.append(f"BT /F1 10 Tf 12 TL {50 + 260 * number} 740 Td")
        for line in lines:
            found.append(f"({line.translate(_WRITTEN)}) Tj T*")
        found.append("ET")
    return "\n".join(found).encode("cp1252")


def document(
    *contents: bytes,
    title: str | None = None,
    language: str | None = None,
    links: Sequence[str] = (),
) -> bytes:
    """A document with a page for each of these contents; the links are on the first page."""
    kids = " ".join(f"{10 + 2 * n} 0 R" for n in range(len(contents)))
    lang = f"/Lang ({language})" if language else ""
    objects: dict[int, str | Stream] = {
        1: f"<< /Type /Catalog /Pages 2 0 R {lang} >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} /MediaBox [0 0 612 792] >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding "
        "<< /BaseEncoding /WinAnsiEncoding /Differences [1 /fi] >> >>",
        4: "<< >>",
    }
    if title is not None:
        hexed = (b"\xfe\xff" + title.encode("utf-16-be")).hex()
        objects[4] = f"<< /Title <{hexed}> >>"
    notes = " ".join(
        f"<< /Type /Annot /Subtype /Link /Rect [0 0 9 9] /A << /S /URI /URI ({uri}) >> >>"
        for uri in links
    )
    for n, content in enumerate(contents):
        annotations = f"/Annots [{notes}]" if n == 0 and notes else ""
        objects[10 + 2 * n] = (
            "<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {11 + 2 * n} 0 R {annotations} >>"
        )
        objects[11 + 2 * n] = ("/Filter /FlateDecode", zlib.compress(content))
    return pdf(objects, trailer="/Root 1 0 R /Info 4 0 R")
