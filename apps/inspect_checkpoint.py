# /// script
# requires-python = ">=3.11"
# [tool.marimo.display]
# theme = "system"
# ///
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="EAGLE-3 checkpoint", css_file="choose_vocab.css")

with app.setup:
    import dataclasses

    import marimo as mo

    from eagle3_core.app import inspect_page as page
    from eagle3_core.app.notebook import catalogue, names, notice
    from eagle3_core.errors import Eagle3Error


@app.cell
def start():
    params = mo.query_params()
    get_asked, set_asked = mo.state(page.asked_in(params.to_dict()))
    get_note, set_note = mo.state(None)
    return get_asked, get_note, params, set_asked, set_note


@app.cell
def update(get_asked, params, set_asked, set_note):
    def change(**values):
        asked = dataclasses.replace(get_asked(), **values)
        if asked != get_asked():
            for name, value in vars(asked).items():
                if params.get(name, "") != asked.query().get(name, ""):
                    params[name] = value
            set_note(None)
            set_asked(asked)

    return (change,)


@app.cell
def path_inputs(change, get_asked, set_note):
    def _received(files):
        try:
            change(path=page.received(files))
        except Eagle3Error as error:
            set_note(("warn", str(error)))

    _asked = get_asked()
    path_input = mo.ui.text(value=_asked.path, label="Path of a checkpoint, mapping or run", full_width=True,
                            placeholder="/models/drafter", on_change=lambda text: change(path=text.strip()))
    _found = sorted(page.found())
    found_input = mo.ui.dropdown(_found, value=_asked.path if _asked.path in _found else None,
                                 label="Found in the data folders", full_width=True,
                                 on_change=lambda name: change(path=name or ""))
    upload_input = mo.ui.file(kind="area", multiple=True, max_size=page.MAX_UPLOAD, on_change=_received,
                              label="Drop config.json, weights or mapping files")
    return found_input, path_input, upload_input


@app.cell
def judging_inputs(change, get_asked):
    _asked = get_asked()
    consumer_input = mo.ui.dropdown(
        {page.ANYONE: "", **{name: name for name in page.CONSUMERS}}, value=_asked.consumer or page.ANYONE,
        label="Judge for", full_width=True, on_change=lambda name: change(consumer=name or ""))
    counts_input = mo.ui.dropdown(
        names(page.counts_names(catalogue()), _asked.counts), value=_asked.counts, label="Token counts",
        full_width=True, on_change=lambda name: change(counts=name or page.AUTOMATIC))
    return consumer_input, counts_input


@app.cell
def sidebar(consumer_input, counts_input, found_input, get_note, path_input, upload_input):
    mo.sidebar(
        mo.vstack([
            path_input, found_input, upload_input, consumer_input, counts_input,
            *([notice(*get_note())] if get_note() else []),
        ], gap=0.6),
        width="300px",
    )
    return


@app.cell
def view(get_asked):
    _markup, _problem = page.render(get_asked())
    if _problem:
        _shown = notice("warn", _problem)
    elif not _markup:
        _shown = notice("info", page.WELCOME)
    else:
        # The page is made by a template that escapes everything it is given.
        _shown = mo.Html(_markup)
    _shown
    return


if __name__ == "__main__":
    app.run()
