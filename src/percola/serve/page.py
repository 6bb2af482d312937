"""The live page: rendered once for all who look, as a page and as the parts of it that change.

The first state is whole without a script. The script then asks for new samples, from which it draws
the plots, and for the parts whose markup has changed; so there is one template of everything that
is shown, and text that is not ours is escaped in one place.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
)
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from percola.platform import fork_safety as forks
from percola.platform.text import count
from percola.serve import shown
from percola.serve.actions import Action, Actions, encode_letter
from percola.serve.problems import START, problems
from percola.serve.sampler import Sampler
from percola.serve.view import Sample, View, as_json, since

PARTS: Final = {
    "summary": "percola/summary.html",
    "observers": "percola/observers.html",
    "letters": "percola/letters.html",
    "details": "percola/details.html",
}
"""The parts of the page that change, and their templates."""


def templates(
    *own: BaseLoader, finalize: Callable[[Any], Any] = shown.finalize, **values: Any
) -> Environment:
    """The templates of the page, below `percola/`, and an application's own before them.

    Everything is escaped, after `finalize` has made what is invisible visible. `values` are names
    that all templates know.
    """
    environment = Environment(
        loader=ChoiceLoader([*own, PrefixLoader({"percola": PackageLoader("percola.serve")})]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        age=shown.age,
        count=count,
        duration=shown.duration,
        letter_name=lambda letter: encode_letter(letter.failure.cell, letter.failure.observer),
        rate=shown.rate,
        size=shown.size,
    )
    environment.filters["moment"] = shown.moment
    environment.globals.update(values)
    return environment


def render(environment: Environment, template: str, status: int = 200, **values: Any) -> Response:
    """A response with what a template makes of the values."""
    text = environment.get_template(template).render(values)
    # Templates escape what has no encoding; this is for what an application passes by them.
    return HTMLResponse(text.encode("utf-8", "replace"), status)


class LivePage:
    """The page, and what its script asks for. Any thread may call it.

    Args:
        sampler: takes the samples.
        environment: see `templates`.
        template: the whole page, which includes the parts.
        parts: the parts that change, and their templates.
        actions: what can be done from the page; None: nothing.
        start_command: the command that starts a worker.
        notes: more about observers, by their names.
    """

    def __init__(
        self,
        sampler: Sampler,
        environment: Environment,
        *,
        template: str = "percola/live.html",
        parts: Mapping[str, str] = PARTS,
        actions: Actions | None = None,
        start_command: str = START,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self._sampler = sampler
        self._environment = environment
        self._template = template
        self._names = dict(parts)
        self._actions = actions
        self._start_command = start_command
        self._values = {
            "can_act": actions is not None,
            "start_command": start_command,
            "notes": notes or {},
        }
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._rendering = threading.Lock()
        self._rendered: tuple[object, dict[str, tuple[str, str]]] | None = None

    def html(self, **values: Any) -> Response:
        """The whole page; `values` are those of this request."""
        samples, view = self._sampler.look()
        known = self._known(samples[-1] if samples else None, view)
        return render(self._environment, self._template, **known, **values)

    def json(self, request: Request) -> Response:
        """The samples after number `since`, and the parts whose marks are not in `have`."""
        text = request.query_params.get("since", "0")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
        have = request.query_params.get("have", "").split(",")
        samples, view = self._sampler.look()
        if samples and number > samples[-1].number:
            number = 0  # A page that was opened before this server was restarted.
        parts = self._parts(samples[-1] if samples else None, view)
        return JSONResponse(
            {
                "samples": [as_json(one) for one in since(samples, number)],
                "trouble": shown.finalize(view.trouble),
                "parts": {
                    name: {"mark": mark, "text": text}
                    for name, (mark, text) in parts.items()
                    if mark not in have
                },
            }
        )

    def _parts(self, sample: Sample | None, view: View) -> dict[str, tuple[str, str]]:
        """The mark and the markup of each part, rendered once for each sample and action."""
        with self._rendering:
            known = self._known(sample, view)
            version = view.version, known["actions"]
            if self._rendered is None or self._rendered[0] != version:
                parts = {}
                for name, template in self._names.items():
                    text = self._environment.get_template(template).render(**known)
                    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
                    parts[name] = mark, text
                self._rendered = version, parts
            return self._rendered[1]

    def _known(self, sample: Sample | None, view: View) -> dict[str, Any]:
        actions: Sequence[Action] = () if self._actions is None else self._actions.last()
        return {
            "sample": sample,
            "view": view,
            "problems": problems(view, self._start_command, can_act=self._actions is not None),
            "actions": actions,
            "address_of": self._sampler.address,
            **self._values,
        }
