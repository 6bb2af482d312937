"""`webindex render`: the image of a page, from the repository, as a PNG file."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.text import Text

from percola import Transaction
from webindex.cli.options import console, json_option, print_json, repo_option
from webindex.errors import RenderError
from webindex.incomplete import refuse_half_built
from webindex.load.resources import keeps_resources
from webindex.rendering.browser import Browser
from webindex.rendering.render import render_url
from webindex.text_format import count, harmless
from webindex.workers.processes import open_repository


@click.command("render")
@repo_option
@json_option
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Where to write the image, a PNG.",
)
@click.option(
    "--thumbnail",
    type=click.Path(dir_okay=False),
    default=None,
    metavar="FILE",
    help="Where to write a small image of the page's beginning.",
)
@click.argument("url")
def render_command(repo: str, as_json: bool, output: str, thumbnail: str | None, url: str) -> None:
    """Write the image of a captured page.

    The page is rendered by a headless Chromium, which sees nothing but the captures in the
    repository, unless it has an image that is up to date; the image is kept. Resources are there
    if the page's crawl was loaded with --resources.
    """
    with open_repository(repo) as opened, Browser() as browser:
        refuse_half_built(opened)

        def render(t: Transaction) -> tuple[dict[str, object], bytes, bytes]:
            return render_url(t, url, browser)

        about, image, small = opened.run(render)
        keeps = keeps_resources(opened)
    _write(output, image)
    if thumbnail is not None:
        _write(thumbnail, small)
    if as_json:
        print_json(about)
        return
    asked = about["asked"]
    assert isinstance(asked, dict)
    missing = [name for name, digest in asked.items() if digest is None]
    size = f"{about['width']} x {about['height']} pixels"
    cut = ", the page is longer" if about["cut"] else ""
    console.print(Text(f"{output}: {size}{cut}, with {count(len(asked), 'resource')}."))
    for name in missing[:10]:
        console.print(Text(f"  not captured: {harmless(name)}", style="dim"))
    if missing and not keeps:
        console.print("This repository keeps no resources: load its crawl with --resources.")


def _write(path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise RenderError(
            f"The image cannot be written to {os.fspath(path)}: {error.strerror or error}."
        ) from error
