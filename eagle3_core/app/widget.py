"""The explorer as a widget: the report's own markup and script, fed by Python, reporting only the chosen size.

Moving the slider costs no round trip; Python hears the size once it rests. The
widget owns the URL: each settled change is one history entry, so Back undoes.
"""

from __future__ import annotations

import functools

import anywidget
import traitlets

from eagle3_core.report.html import vega_bundle, web_file

_GLUE = """
function render({ model, el }) {
  let handle = null, told = 0, written = 0;
  const place = () => "?" + [model.get("payload").query, "d=" + handle.size].filter(Boolean).join("&");
  const write = (replace) => {
    if (!handle || !model.get("owns_url") || location.search === place()) return;
    history[replace ? "replaceState" : "pushState"]({ d: handle.size }, "", place() + location.hash);
  };
  const tell = (size) => { model.set("size", size); model.save_changes(); };
  const onSize = (size) => {
    clearTimeout(told); told = setTimeout(() => tell(size), 150);
    clearTimeout(written); written = setTimeout(() => write(false), 500);
  };
  const onReady = () => { const cover = document.getElementById("first-paint"); if (cover) cover.remove(); };
  function build() {
    const payload = model.get("payload");
    if (!payload || !payload.rows) return;
    const first = handle === null;
    if (handle) handle.destroy();
    el.classList.add("e3");
    el.innerHTML = model.get("markup");
    handle = E3.hydrate(el, payload, { onSize, onReady });
    write(first);
  }
  const back = () => {
    const query = new URLSearchParams(location.search), size = Number(query.get("d"));
    query.delete("d");
    if (query.toString() !== new URLSearchParams(model.get("payload").query).toString()) { location.reload(); return; }
    if (handle && size) { handle.setSize(size, true); tell(size); }
  };
  const want = () => { if (handle && model.get("want")) { handle.setSize(model.get("want")); } };
  addEventListener("popstate", back);
  model.on("change:markup", build);
  model.on("change:want", want);
  build();
  return () => { removeEventListener("popstate", back); if (handle) handle.destroy(); };
}
export default { render };
"""


@functools.cache
def script() -> str:
    return "\n".join((vega_bundle(), web_file("explorer.js"), _GLUE))


class Explorer(anywidget.AnyWidget):
    """``payload`` then ``markup`` are set by Python (the markup's change redraws); ``size`` comes back."""

    _esm = ""
    _css = ""
    payload = traitlets.Dict({}).tag(sync=True)
    markup = traitlets.Unicode("").tag(sync=True)
    size = traitlets.Int(0).tag(sync=True)
    want = traitlets.Int(0).tag(sync=True)
    """Set by Python to move the marker, for buttons outside the widget."""
    owns_url = traitlets.Bool(True).tag(sync=True)

    def __init__(self, **values: object) -> None:
        super().__init__(**values)


def explorer() -> Explorer:
    """A widget with its script in place; the script is made on first use."""
    Explorer._esm = script()
    Explorer._css = web_file("explorer.css")
    return Explorer()
