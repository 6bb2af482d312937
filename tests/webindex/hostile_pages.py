"""What a hostile page holds: markup, quotes, turns of direction, in each place that it can."""

from __future__ import annotations

from html import escape

from site_client import article

TITLE = "</title><script>window.hacked=1</script> \"'`{{7*7}}${1}<!--"
TEXT = '<img src=x onerror="window.hacked=1"> \'"><svg/onload=window.hacked=1> ]]> {{7*7}}'
ANCHOR = '"><script>window.hacked=1</script>'
TURNED = "txt\u202egpj.exe \u2066isolated\u2069 \x1b[31m \x07bell \u2028line"
QUOTED = "https://evil.example/'onmouseover='window.hacked=1?q=\"><script>window.hacked=1</script>"
RUNNING = "javascript:window.hacked=1"
SOURCE, TARGET, OTHER = (
    "https://evil.example/source",
    QUOTED,
    "https://evil.example/%22%3E%3Cscript%3E/%E2%80%AEtxt",
)


def hostile(title: str, text: str) -> str:
    links = "".join(
        f'<a href="{escape(url)}">{escape(ANCHOR)} {escape(TURNED)}</a>'
        for url in (TARGET, OTHER, RUNNING, "data:text/html,<script>window.hacked=1</script>")
    )
    return article(escape(title), f"{escape(text)} malevolence {escape(TURNED)}", links)
