"""The errors of the web index that are not a module's own business."""

from __future__ import annotations


class WebindexError(Exception):
    """The root of the errors below; a message is a sentence that helps."""


class WorkingError(WebindexError):
    """The worker processes could not do their work."""


class LoadError(WebindexError):
    """A load could not be begun, or ended early."""
