"""The markup around the explorer: examples, notices, the navigation and the first paint.

A notebook page takes seconds to start. Until then the page shows the explorer
itself, made on the server for the state in the address and already moving under
the hand; the live notebook takes the same element over. Everything that comes
from files or links is escaped here.

Adding a page takes one marimo file in ``apps/`` and its line in ``PAGES``: it is
then served under its clean path, with the navigation above it, the same rules of
access and the same caches. Its link appears only where the file is there. Such a
page starts with ``marimo.App(width="full", css_file="choose_vocab.css")`` and a
setup cell that imports from ``eagle3_core``; classes of ``explorer.css`` work
inside an element of class ``e3``.

A page hands things to the main app by a link to ``/choose/`` with the fields of
``state.AppState`` as its query, made by ``state.to_query``. An inherited drafter
comes as ``baseline``: its D in digits, or the name that ``sources.add_mapping``
returns for its mapping, whose coverage is then measured on whatever counts are
shown. ``locked`` is the D that fine-tuning keeps. Counts and profiles that a page
made are handed on by ``sources.add_upload``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from eagle3_core.app.screen import Screen
from eagle3_core.app.state import EXAMPLES, HINTS, AppState, to_query
from eagle3_core.app.widget import app_file, page_script, styles
from eagle3_core.report.html import render_explorer, script_json

PAGES: dict[str, tuple[str, str]] = {
    "/choose": ("Choose", "choose_vocab.py"),
    "/inspect": ("Inspect", "inspect_checkpoint.py"),
    "/runs": ("Runs", "training_runs.py"),
}
"""Path -> (name in the navigation, notebook)."""
TOUR = (
    ("1", "Read the answer", "the sentence names the smallest size that is as fast as any."),
    ("2", "Move the size", "drag, arrow keys, a click in a chart, or type an exact number."),
    ("3", "Put in your own", "token counts, a latency profile and acceptance, on the left."),
)


def _link(href: str, text: str, more: str = "", *, current: str = "") -> str:
    mark = f' aria-current="{current}"' if current else ""
    return f'<a href="{escape(href)}"{more}{mark}>{escape(text)}</a>'


def view_markup(screen: Screen, notices: Sequence[str] = (), svg: str = "") -> str:
    """What the view's element holds: examples, notices, then the report's explorer."""
    state_query = screen.payload["query"]
    links = "".join(
        _link(f"?{to_query(state)}", name,
              f' data-query="{escape(to_query(state))}" title="{escape(HINTS.get(name, ""))}"',
              current="true" if to_query(state) == state_query else "")
        for name, state in EXAMPLES.items()
    )
    tour = "".join(f"<div><b>{n}. {escape(head)}</b>: {escape(rest)}</div>" for n, head, rest in TOUR)
    said = "".join(f'<p class="notice" role="status">{escape(text)}</p>' for text in (*notices, *screen.notices))
    return (
        f'<nav class="examples" aria-label="Worked examples"><span class="what">Examples</span>{links}'
        '<button type="button" data-copy>Copy link</button></nav>'
        f'<div class="tour" data-tour hidden>{tour}<button type="button" data-dismiss>Got it</button></div>'
        f"{said}{render_explorer(screen.payload, svg)}"
    )


def navigation(current: str, available: Sequence[str], said: str = "127.0.0.1 only") -> str:
    links = "".join(_link(f"{path}/", name, current="page" if path == current else "")
                    for path, (name, _) in PAGES.items() if path in available)
    return (f'<header class="e3-nav"><strong>EAGLE-3 <span>draft vocabulary</span></strong>'
            f'<nav aria-label="Apps" style="display:flex;height:100%">{links}</nav>'
            f'<span class="said" role="status">{escape(said)}</span></header>')


def _summary(state: AppState, payload: dict[str, Any]) -> str:
    """The inputs in words, where the live page will have its controls."""
    pairs = [
        ("Target", state.target), ("Token counts", payload["standIn"] or state.counts), ("Latency", state.latency),
        ("Acceptance", state.acceptance or f"{state.alpha:g} at every position"), ("Draft length K", str(state.k)),
        ("Draft tensor parallel", str(state.draft_tp)), ("Batch", str(state.batch)), ("Weights", state.dtype),
    ]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return ('<aside class="side" aria-label="Inputs"><div class="wait"></div>Starting the controls ...'
            f"<dl>{rows}</dl></aside>")


def first_paint_markup(
    state: AppState, screen: Screen, notices: Sequence[str], svg: str, chart: dict[str, Any] | None
) -> str:
    payload = screen.payload | {"chart": chart}
    return (
        f'<div id="first-paint">{_summary(state, screen.payload)}<main class="body e3">'
        f'<div class="e3-view">{view_markup(screen, notices, svg)}</div></main></div>'
        f'<script type="application/json" id="e3-data">{script_json(payload)}</script>'
    )


def problem_markup(message: str) -> str:
    """The first paint when the state cannot be computed: say why, and how to go on."""
    return (f'<div id="first-paint"><aside class="side"></aside><main class="body e3"><p class="notice" role="alert">'
            f'{escape(message)}</p><p><a href="?">Open the first example</a></p></main></div>')


_LATER = re.compile(
    r'\s*(?:<link rel="(?:modulepreload|preload|stylesheet)"[^>]*>|<script type="module"[^>]*></script>)')


def notebook_page(html: str, top: str, vega_url: str | None) -> str:
    """marimo's page with ours in front: everything of marimo's that could delay the first paint goes to the end.

    Fonts and pictures that marimo preloads and this page never shows are left out.
    """
    at = html.find("</head>")
    end = html.find(">", html.find("<body")) + 1
    last = html.rfind("</body>")
    head, body = html[:at], html[end:last]
    moved = [tag.strip() for tag in _LATER.findall(head) if 'rel="preload"' not in tag]
    ours = f"<style>{app_file('page.css')}{styles()}</style><script>{page_script()}</script>"
    start = vega = ""
    if vega_url is not None:
        start = "<script>E3View.first()</script>"
        vega = f'<script>E3View.vega("{escape(vega_url)}")</script>'
    return (_LATER.sub("", head) + ours + html[at:end] + top + start + body + vega + "\n".join(moved) + html[last:])


LOGIN = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Token needed</title><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:26em;margin:15vh auto;padding:0 16px;color:#1c2733}
input,button{font:inherit;padding:6px 10px}input{width:100%;box-sizing:border-box;margin:8px 0}
@media (prefers-color-scheme:dark){body{background:#12181f;color:#e6ebf0}}</style></head><body><h1>Token needed</h1>
<p>This server is open to other machines. Its token is in the file given with <code>--token-file</code>, or in
<code>EAGLE3_TOKEN</code>.</p>{said}<form method="post" action="/login"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<input type="hidden" name="next" value="{next}"><button>Open</button></form></body></html>"""


def login_markup(next_url: str, wrong: bool) -> str:
    said = '<p role="alert"><b>That is not the token.</b></p>' if wrong else ""
    return LOGIN.replace("{said}", said).replace("{next}", escape(next_url))
