"""Errors of the web index that do not belong to one module."""

from __future__ import annotations


class WebindexError(Exception):
    """The base class of the errors below."""


class WorkingError(WebindexError):
    """The worker processes could not run or stopped early."""


class LoadError(WebindexError):
    """A load could not start, or ended early."""


class RenderError(WebindexError):
    """A page could not be rendered; the message says why."""


class NoBrowserError(RenderError):
    """There is no browser to render pages with, or it does not start."""
