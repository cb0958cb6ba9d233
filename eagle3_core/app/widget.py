"""The explorer as a widget: the report's own markup and script, fed by Python, reporting only the chosen size.

Moving the slider costs no round trip: figures come from the table in the page and
the pictures move by one Vega parameter. Python hears the size once it rests, and
answers with one more row where the size lies between those of the table.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import resources
from typing import Any

import anywidget
import traitlets

from eagle3_core.app.vega import cached_bundle
from eagle3_core.report.html import web_file

SERVED = "EAGLE3_SERVED"
"""Set by our server, whose pages load Vega beside the notebook; elsewhere the widget brings it."""
_SHIM = """
export default { render(context) { return globalThis.E3View.attach(context); } };
"""


@functools.cache
def app_file(name: str) -> str:
    return resources.files("eagle3_core.app").joinpath("web", name).read_text(encoding="utf-8")


@functools.cache
def page_script() -> str:
    """Explorer and view as one classic script; running it twice changes nothing."""
    code = web_file("explorer.js") + "globalThis.E3 = E3;\n" + app_file("view.js")
    return "if (!globalThis.E3View) {\n" + code + "}\n"


@functools.cache
def styles() -> str:
    return web_file("explorer.css") + app_file("view.css")


def module_script(*, served: bool) -> str:
    """The widget's module: with Vega inside unless the page has it already."""
    vega = "" if served else "if (!globalThis.vegaEmbed) {\n" + cached_bundle() + "}\n"
    return vega + page_script() + _SHIM


class Explorer(anywidget.AnyWidget):
    """``payload`` and ``markup`` hold the picture; raising ``version`` draws it. ``size`` comes back."""

    _esm = ""
    _css = ""
    payload = traitlets.Unicode("").tag(sync=True)
    """JSON. As a dictionary it would be walked and copied at every turn."""
    markup = traitlets.Unicode("").tag(sync=True)
    version = traitlets.Int(0).tag(sync=True)
    stale = traitlets.Bool(False).tag(sync=True)
    size = traitlets.Int(0).tag(sync=True)
    pin = traitlets.Int(0).tag(sync=True)
    """The size compared with; 0 is none."""
    want = traitlets.Int(0).tag(sync=True)
    """Set by Python to move the marker, for buttons outside the widget."""
    restore = traitlets.Unicode("").tag(sync=True)
    """A query to go back to, after a time stamp: set by the page on Back and by the examples."""
    extra = traitlets.Dict({}).tag(sync=True)
    """One more row of the table, for a size that was typed."""
    chart = traitlets.Unicode("").tag(sync=True)
    """JSON of the ``query`` and ``spec`` of the pictures; they follow the figures."""
    recommended = 0
    """What the size is when nobody has chosen one."""
    row_for: Callable[[int], dict[str, Any] | None] | None = None

    @traitlets.observe("size")
    def _fetch_row(self, change: dict[str, Any]) -> None:
        if self.row_for is not None and change["new"]:
            row = self.row_for(change["new"])
            if row is not None:
                self.extra = row

    def show(
        self, payload: str, markup: str, recommended: int, row_for: Callable[[int], dict[str, Any] | None]
    ) -> None:
        """Draw new inputs."""
        self.row_for, self.recommended = row_for, recommended
        with self.hold_sync():
            self.payload, self.markup, self.stale = payload, markup, False
            self.version += 1


def explorer() -> Explorer:
    """A widget with its script in place; the script is made on first use."""
    Explorer._esm = module_script(served=bool(os.environ.get(SERVED)))
    Explorer._css = styles()
    return Explorer()
