"""From the bytes of a page to markup that is safe to parse: charset, NUL characters, hostile tags.

The parsers that this package uses accept any markup, but some of their steps take time quadratic
in the nesting depth or in the number of attributes of one tag: a page of one
megabyte could keep a worker busy for many minutes. So `decode` flattens elements nested deeper than
`MAX_DEPTH` (browsers do the same at 512) and drops tags longer than `MAX_TAG`, keeping the text.
This is meant for broken generators; two megabytes made on purpose can still take some seconds.
"""

import codecs
import re
from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

import numpy as np
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

__all__ = [
    "MAX_BODY",
    "MAX_DEPTH",
    "MAX_TAG",
    "Markup",
    "decode",
    "markup_of",
    "media_type",
    "with_whole_head",
    "xml_markup_of",
]

MAX_BODY: Final = 8 << 20
"""Bytes of a body that are parsed; the rest is ignored. A load takes less by default."""

MAX_DEPTH: Final = 1000
"""Nesting depth up to which elements are kept; deeper ones are replaced by their content."""

MAX_TAG: Final = 16_384
"""Characters of a tag with all its attributes; a longer one is dropped (a `data:` image, say)."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Browsers read these charsets as the larger ones that most such pages are written in, and a page
# with one character of those may seem to be in another language altogether.
_LARGER: Final = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
}
# Names that the library for charsets does not know, and browsers do.
_UNKNOWN: Final = {"x-mac-cyrillic": "mac_cyrillic", "x-mac-ukrainian": "mac_cyrillic"}
# What it finds in the bytes of a page, and then takes for UTF-8, as browsers know no such names.
_DETECTED: Final = {"cp949": "euc_kr", "mac-cyrillic": "mac_cyrillic"}
# Of the Japanese charsets, Python's codecs lack signs that Windows has in them, such as "①".
_JIS: Final = ("euc_jp", "iso2022_jp")
_JIS_ERRORS: Final = "webindex-jis"
_SHIFT: Final = re.compile(rb"\x1b(?:\(([BJI])|\$([@B]))")
# What a charset is declared by, and what may have such words in it. What is not closed goes on.
_DECLARING: Final = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|title|noscript)\b.*?(?:</\1\b|\Z)|<meta\b(?P<said>[^>]*+)",
    re.IGNORECASE | re.DOTALL,
)
_DECLARED_WITHIN: Final = 128 << 10
"""Bytes of a page in which its own declaration of its charset is looked for."""

_CHARSET = re.compile(r"charset\s*=[\s\"']*([\w.:-]+)", re.ASCII | re.IGNORECASE)
# One in this many characters may be broken before a charset counts as wrong.
_TOLERATED = 500
_DAMAGE = "\ufffd"
# One in this many characters that are not ASCII may be broken in what is UTF-8 by another label.
_AMONG = 10

_XML_ENCODING = re.compile(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)")
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
# Possessive: a megabyte of spaces behind a name must not make this one backtrack.
_EMPTY_ELEMENT = re.compile(r"<([A-Za-z_][\w.:-]*+)([^<>]*+)(?<=/)>")
_VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr".split()  # noqa: SIM905
)

# The rest of a tag. A value in quotes may have ">" in it. Outside of quotes "<" ends the search: a
# tag that is not closed must not be followed to the end of the page, as thousands of them would be.
_REST = r"(?:[^<>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+>"
# What a head consists of; the first other tag, or text, ends it. What is not closed goes on. Spaces
# that HTML does not know, as one that does not break, are text.
_OF_HEAD = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(script|style|title|template|noframes)\b.*?(?:</\1\b|\Z)"
    r"|(?P<noscript><noscript\b[^>]*+>.*?(?:</noscript\b[^>]*+>|(?P<open>\Z)))"
    rf"|<(?:html|head|meta|link|base|basefont|bgsound)\b{_REST}"
    r"|(?P<end></head\b|<(?!(?:html|head|meta|link|base|basefont|bgsound)\b)[a-z]"
    r"|(?:\A|(?<=>))[ \t\n\f\r]*+(?:[^ \t\n\f\r<]|<[^a-z/!?]))",
    re.IGNORECASE | re.DOTALL,
)
_FOR_HEAD = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(script|style|template|noframes|noscript|textarea|svg)\b.*?(?:</\1\b|\Z)"
    rf"|(?P<for><(?:meta|link)\b{_REST}|(?P<title><title\b{_REST}[^<]*+</title\s*+>))"
    r"|(?P<head></head\b)|(?P<body><body\b)",
    re.IGNORECASE | re.DOTALL,
)
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)[^>]*>?")
# Elements that are void, or that the next one of their kind closes: they do not nest. Those of ruby
# (rp, rt) do, outside of it.
_FLAT = frozenset(
    """
    area base br col embed hr img input link meta param source track wbr
    a button body colgroup dd dt h1 h2 h3 h4 h5 h6 head html li nobr p
    tbody td tfoot th thead tr
    """.split()  # noqa: SIM905
)


def media_type(content_type: str | None) -> str:
    """Return the media type that a `Content-Type` header names, in lower case, or nothing.

    A header that is repeated, or that was joined with itself, counts once. The type ends at a
    space, as in browsers: some servers leave the semicolon out of "text/html charset=utf-8".
    """
    return re.split(r"[;,\s]", (content_type or "").strip(), maxsplit=1)[0].lower()


class Markup(NamedTuple):
    """The text of a page, and Python's name of the charset that it is in."""

    text: str
    codec: str


def decode(body: bytes, content_type: str | None) -> str:
    """Return the text of `markup_of`."""
    return markup_of(body, content_type).text


def markup_of(body: bytes, content_type: str | None) -> Markup:
    """Return `body` as text without NUL characters and lone surrogates. Never raises.

    A byte order mark decides the charset; then the `charset` of the `Content-Type` header, then
    the page's own declaration or what its bytes look like. The first under which (nearly) all
    bytes make sense wins, or else the one with the fewest broken characters, each replaced by
    U+FFFD. Non-ASCII text labelled Latin-1 (a widespread server default) that (nearly) all is
    valid UTF-8 is UTF-8.
    """
    body = body[:MAX_BODY]
    for mark, codec in _BOMS:
        if body.startswith(mark):
            return Markup(_finish(_text(body[len(mark) :], codec)), codec)
    best, least = Markup("", "utf-8"), len(body) + 1
    for codec in _charsets(body, content_type):
        if codec.startswith("utf-16") and b"\0" not in body:
            continue  # A declaration that was kept when the page was saved in another charset.
        text = _text(body, codec)
        damage = text.count(_DAMAGE) - text.endswith(_DAMAGE)
        if damage * _TOLERATED <= len(text):
            return Markup(_finish(text), codec)
        if damage < least:
            best, least = Markup(text, codec), damage
    return best._replace(text=_finish(best.text))


def xml_markup_of(body: bytes, content_type: str | None) -> Markup:
    """Return an XML document as markup that an HTML parser reads with the intended meaning.

    The charset is that of the `Content-Type` header, else of the XML declaration. Empty elements
    are closed, and the content of CDATA sections becomes text.
    """
    if _CHARSET.search(content_type or "") is None:
        declared = _XML_ENCODING.match(body[:200])
        charset = declared[1].decode() if declared is not None else "utf-8"
        content_type = f"text/xml; charset={charset}"
    # Behind the last end of a section each beginning of one would be followed to the end in vain.
    decoded = markup_of(body, content_type)
    sections, last, rest = decoded.text.rpartition("]]>")
    text = _CDATA.sub(lambda found: escape(found[1], quote=False), sections + last) + rest
    return decoded._replace(text=_EMPTY_ELEMENT.sub(_closed, text))


def with_whole_head(markup: str) -> str:
    """Return markup whose head a parser finds whole, as its author wrote it.

    Its ``noscript`` elements are left out: a browser that runs scripts takes their content for
    text. Parsed as markup, an image in one, as those that count visitors, would end the head, and
    what follows of it, such as a request not to be indexed, would be in the body. An image or a
    ``div`` that is there by itself does end it, and so does text, as the byte order mark of a file
    that was inserted: the title, metadata and links behind it, up to where the head ends as it is
    written, are put before everything else.
    """
    kept, done, at, titled = [], 0, len(markup), False
    for token in _OF_HEAD.finditer(markup):
        titled = titled or (token[1] or "").lower() == "title"
        if token["end"] is not None:
            at = token.start()
            break
        if token["open"] is not None:
            break
        if token["noscript"] is not None:
            kept.append(markup[done : token.start()])
            done = token.end()
    moved: list[re.Match[str]] = []
    for token in _FOR_HEAD.finditer(markup, at):
        if token["head"] is not None:
            break
        if token["body"] is not None:
            moved = []
            break
        if token["for"] is not None and not (titled and token["title"] is not None):
            moved.append(token)
    else:
        moved = []
    for token in moved:
        kept.append(markup[done : token.start()])
        done = token.end()
    return "".join([*(one[0] for one in moved), *kept, markup[done:]]) if kept else markup


def _closed(tag: re.Match[str]) -> str:
    name = tag[1].lower()
    return tag[0] if name in _VOID else f"<{tag[1]}{tag[2][:-1].rstrip()}></{tag[1]}>"


def _text(body: bytes, codec: str) -> str:
    """Decode up to the last whole character: a page may be cut off within its last one."""
    errors = "replace"
    if codec in _JIS:
        body = _unshifted(body) if codec == "iso2022_jp" else body
        codec, errors = "euc_jp", _JIS_ERRORS
    return codecs.getincrementaldecoder(_LARGER.get(codec, codec))(errors).decode(body)


def _unshifted(body: bytes) -> bytes:
    """Text in ISO-2022-JP as EUC-JP, which has the same characters without shifting."""
    parts, kind, done = [], b"B", 0
    high = bytes(byte | 0x80 if 0x20 < byte < 0x7F else byte for byte in range(256))
    for shift in (*_SHIFT.finditer(body), None):
        part = body[done : shift.start() if shift is not None else None]
        if kind == b"I":
            part = re.sub(rb"[\x21-\x5f]", lambda one: bytes((0x8E, one[0][0] | 0x80)), part)
        elif kind == b"$":
            part = part.translate(high)
        parts.append(part)
        if shift is not None:
            kind, done = shift[1] or b"$", shift.end()
    return b"".join(parts)


def _of_windows(error: UnicodeError) -> tuple[str, int]:
    """Decode a character of EUC-JP that Python lacks, by its place in the charset of Windows."""
    assert isinstance(error, UnicodeDecodeError)
    at = error.start
    pair = error.object[at : at + 2]
    if len(pair) == 2 and all(0xA1 <= byte <= 0xFE for byte in pair):
        row, cell = pair[0] - 0xA0, pair[1] - 0xA0
        first = (row - 1) // 2 + (0x81 if row <= 62 else 0xC1)
        second = cell + (0x9E if row % 2 == 0 else 0x3F + (cell > 63))
        found = bytes((first, second)).decode("cp932", "ignore")
        if found:
            return found, at + 2
    return _DAMAGE, error.end


codecs.register_error(_JIS_ERRORS, _of_windows)


def _charsets(body: bytes, content_type: str | None) -> Iterator[str]:
    """Codecs worth trying, best first."""
    from_header = _codec_in(content_type or "")
    declared = from_header or _declared_in(body)
    yield "utf-8" if declared == "cp1252" and _is_utf8(body) else declared
    if from_header:
        yield _declared_in(body)
    detected = detect_encoding(body, html5_compatible=False) or "utf-8"
    yield _DETECTED.get(detected) or map_encoding_to_html5(detected) or "utf-8"
    yield "utf-8"


def _codec_in(said: str) -> str | None:
    """The codec of the charset that is named there, if there is one that browsers know."""
    named = _CHARSET.search(said)
    if named is None:
        return None
    name = named[1].lower()
    return _UNKNOWN.get(name) or map_encoding_to_html5(name, False)


def _declared_in(body: bytes) -> str:
    """The codec that a page declares, however far from its beginning; else what it looks like."""
    for one in _DECLARING.finditer(body[:_DECLARED_WITHIN].decode("latin-1").lower()):
        said = one["said"] or ""
        # Not a description of the page that speaks of charsets.
        if ("http-equiv" in said or "content" not in said) and (codec := _codec_in(said)):
            return codec
    # Of XHTML that is served as HTML (HTML Standard, §13.2.3.2, "get an XML encoding").
    in_xml = _XML_ENCODING.match(body[:200])
    if in_xml is not None and (codec := _codec_in(f"charset={in_xml[1].decode()}")):
        return codec
    return detect_encoding(body, from_html_meta=True) or "utf-8"


def _is_utf8(body: bytes) -> bool:
    """Whether (nearly) all that is not ASCII is UTF-8: no text of another charset is, by chance."""
    text = _text(body, "utf-8")
    damage = text.count(_DAMAGE)
    return not damage or damage * _AMONG <= len(text) - len(text.encode("ascii", "ignore"))


def _finish(text: str) -> str:
    # A page put together from files may begin with several byte order marks: one that is left would
    # be taken for text, with which the head ends.
    return _flatten(text.replace("\0", "").lstrip("\ufeff"))


def _flatten(text: str) -> str:
    """Drop the tags that make parsing slow; see the module's docstring."""
    if _depth_bound(text) <= MAX_DEPTH and not _has_long_tag(text):
        return text
    depth = 0

    def keep(tag: re.Match[str]) -> str:
        nonlocal depth
        whole = tag[0]
        if len(whole) > MAX_TAG and "<" not in whole[1:]:
            return ""
        if tag[2].lower() in _FLAT:
            return whole
        if whole.endswith("/>"):
            # HTML ignores this slash except in SVG and MathML, where there can be thousands.
            return f"{whole[:-2]}></{tag[2]}>"
        if not tag[1]:
            depth += 1
            return whole if depth <= MAX_DEPTH else ""
        depth = max(depth - 1, 0)
        return whole if depth < MAX_DEPTH else ""

    return _TAG.sub(keep, text)


def _has_long_tag(text: str) -> bool:
    """Whether `MAX_TAG` characters follow one another without a ``>`` among them."""
    at = 0
    while at + MAX_TAG <= len(text):
        last = text.rfind(">", at, at + MAX_TAG)
        if last < 0:
            return True
        at = last + 1
    return False


def _depth_bound(text: str) -> int:
    """A depth that `text` can hardly exceed: it counts void and unclosed elements as levels too."""
    opening = text.count("<") - text.count("</")
    if opening <= MAX_DEPTH:
        return opening
    characters = np.frombuffer(text.encode("utf-8", "replace") + b" ", dtype=np.uint8)
    after = characters[np.flatnonzero(characters == ord("<")) + 1]
    letters = (after | 0x20) - np.uint8(ord("a")) < 26
    level = np.cumsum(letters.astype(np.int64) - (after == ord("/")))
    return int((level - np.minimum.accumulate(level)).max())
