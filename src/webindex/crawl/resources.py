"""Which responses are resources of pages: stylesheets, images, fonts and scripts, by media type."""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["MAX_RESOURCE", "Kind", "kind_of"]

Kind = Literal["style", "image", "font", "script"]
"""What a page uses a resource for."""

MAX_RESOURCE: Final = 4 << 20
"""Bytes of a resource's decoded body by default; a longer one is not kept: half an image, or half
a stylesheet, would show another page."""

_KINDS: Final[dict[str, Kind]] = {
    "text/css": "style",
    "text/javascript": "script",
    "application/javascript": "script",
    "application/x-javascript": "script",
    "application/ecmascript": "script",
    "text/ecmascript": "script",
    "application/vnd.ms-fontobject": "font",
    "application/font-sfnt": "font",
    "application/font-woff": "font",
    "application/font-woff2": "font",
    "application/x-font-opentype": "font",
    "application/x-font-otf": "font",
    "application/x-font-ttf": "font",
    "application/x-font-truetype": "font",
    "application/x-font-woff": "font",
}


def kind_of(media_type: str | None) -> Kind | None:
    """What a response of this media type is to a page; None if it is no resource."""
    if media_type is None:
        return None
    if media_type.startswith("image/"):
        return "image"
    if media_type.startswith("font/"):
        return "font"
    return _KINDS.get(media_type)
