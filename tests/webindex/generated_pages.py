"""Pages in the shape of documentation generators: much that all share, and little of their own.

The names and texts are made up from a seed; what surrounds them is what the generators write.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

HOST = "https://docs.example"

_PARTS = ["ka", "lo", "mi", "ren", "tas", "vel", "dor", "qui", "nas", "pel", "tor", "un", "bal"]
_PARTS += ["sy", "gri", "fen", "hol", "yar", "zu", "cam"]
_VERBS = ["returns", "computes", "removes", "stores", "reads", "compares", "formats", "parses"]
_OBJECT = "clone, equals, finalize, getClass, hashCode, notify, notifyAll, wait, wait, wait"


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(_PARTS, k=rng.randint(2, 3)))


def _sentence(rng: random.Random) -> str:
    verb = rng.choice(_VERBS).title()
    return f"{verb} the {' '.join(_word(rng) for _ in range(rng.randint(5, 12)))}."


def _paragraph(rng: random.Random, sentences: int) -> str:
    return f"<p>{' '.join(_sentence(rng) for _ in range(sentences))}</p>"


def _name(rng: random.Random) -> str:
    return f"{_word(rng)}{_word(rng)}".title()


def _javadoc(name: str, body: str) -> str:
    menu = "".join(
        f'<li><a href="/{one}.html">{one}</a></li>'
        for one in ("Overview", "Package", "Class", "Use", "Tree", "Deprecated", "Index", "Help")
    )
    return (
        f'<!DOCTYPE HTML><html lang="en"><head><title>{name}</title></head><body>'
        f'<header><nav><div class="topNav"><ul>{menu}</ul></div></nav></header>'
        f'<main role="main"><div class="header"><h2>Class {name}</h2></div>{body}</main>'
        f"<footer><nav><ul>{menu}</ul></nav><p>Copyright 2004-2023. All rights reserved.</p>"
        "</footer></body></html>"
    )


def an_exception(rng: random.Random) -> tuple[str, str]:
    """A class of which only the name and a sentence are its own: another page all the same."""
    name = f"{_name(rng)}Exception"
    means = {
        "": "null as its detail message",
        "String message": "the specified detail message",
        "Throwable cause": "the specified cause and a detail message of it",
        "String message, Throwable cause": "the specified detail message and cause",
    }
    rows = "".join(
        f"<tr><th><code>({one})</code></th><td>Constructs a new exception with {what}.</td></tr>"
        for one, what in means.items()
    )
    details = "".join(
        f"<section><h4>Constructor</h4><p>Constructs a new exception with {what}. The cause is not "
        "initialized, and may subsequently be initialized by a call to initCause. Note that the "
        "detail message associated with cause is not automatically incorporated in this "
        "exception's detail message.</p><dl><dt>Parameters:</dt><dd>message - the detail message, "
        "which is saved for later retrieval by the getMessage method</dd><dd>cause - the cause, "
        "which is saved for later retrieval by the getCause method. A null value is permitted, and "
        "indicates that the cause is nonexistent or unknown.</dd></dl></section>"
        for what in means.values()
    )
    inherited = (
        "<h3>Methods inherited from class java.lang.Throwable</h3><code>addSuppressed, "
        "fillInStackTrace, getCause, getLocalizedMessage, getMessage, getStackTrace, "
        "getSuppressed, initCause, printStackTrace, printStackTrace, setStackTrace, toString</code>"
        f"<h3>Methods inherited from class java.lang.Object</h3><code>{_OBJECT}</code>"
    )
    return f"api/{name}.html", _javadoc(
        name,
        f"<p>java.lang.Object java.lang.Throwable java.lang.Exception {name}</p>"
        f"<div class=block>Thrown when the {_sentence(rng).lower()}</div>"
        f"<table><caption>Constructors</caption>{rows}</table>{inherited}{details}",
    )


def a_class(rng: random.Random) -> tuple[str, str]:
    """A class with methods of its own."""
    name = _name(rng)
    methods = "".join(
        f"<section><h4>{_word(rng)}</h4>{_paragraph(rng, rng.randint(2, 4))}</section>"
        for _ in range(rng.randint(3, 8))
    )
    return f"api/{name}.html", _javadoc(
        name,
        f"<p>java.lang.Object {name}</p>{_paragraph(rng, 3)}{methods}"
        f"<h3>Methods inherited from class java.lang.Object</h3><code>{_OBJECT}</code>",
    )


def a_function(rng: random.Random) -> tuple[str, str]:
    """A function, in the manner of Sphinx: short, in a frame that is much longer."""
    name = f"{_word(rng)}.{_word(rng)}_{_word(rng)}"
    menu = "".join(
        f'<li><a href="/{one}">{one} reference and index</a></li>'
        for one in ("array", "signal", "linear", "sparse", "special", "stats", "spatial", "fft")
    )
    return f"reference/{name}.html", (
        f"<!doctype html><html lang=en><head><title>{name} — Manual</title></head><body>"
        f'<div class="sidebar"><ul>{menu * 3}</ul></div><main class="col-12"><section><h1>{name}'
        f"</h1><dl><dt>{name}(x, out=None)</dt><dd>{_paragraph(rng, rng.randint(2, 6))}"
        f"<dl><dt>Parameters</dt><dd>{_paragraph(rng, 2)}</dd><dt>Returns</dt><dd>"
        f"{_paragraph(rng, 1)}</dd></dl></dd></dl></section></main>"
        "<footer><p>Created using a generator. Last updated on Jan 5, 2023.</p></footer></body>"
        "</html>"
    )


SHAPES: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "exceptions": an_exception,
    "classes": a_class,
    "functions": a_function,
}


def pages(shape: str, count: int, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """Different pages of a shape: URL and bytes each."""
    rng = random.Random(f"{seed} {shape}")
    for _ in range(count):
        path, markup = SHAPES[shape](rng)
        yield f"{HOST}/{path}", markup.encode()
