# /// script
# requires-python = ">=3.11"
# [tool.marimo.display]
# theme = "system"
# ///
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="EAGLE-3 draft vocabulary", css_file="choose_vocab.css")

with app.setup:
    import dataclasses

    import marimo as mo

    from eagle3_core.app import notebook as nb
    from eagle3_core.app.state import RANKINGS


@app.cell
def start():
    first, link_notices = nb.first_state(mo.query_params().to_dict())
    get_state, set_state = mo.state(first)
    get_catalogue, set_catalogue = mo.state(nb.catalogue())
    get_upload_note, set_upload_note = mo.state(None)
    return (first, get_catalogue, get_state, get_upload_note, link_notices, set_catalogue, set_state, set_upload_note)


@app.cell
def update(explorer_widget, get_state, set_state):
    def change(**values):
        set_state(dataclasses.replace(nb.with_size(get_state(), explorer_widget), **values))

    return (change,)


@app.cell
def source_inputs(change, get_catalogue, get_state):
    _c, _s = get_catalogue(), get_state()
    target_input = mo.ui.dropdown(
        nb.names(_c.target_names(), _s.target), value=_s.target, label=nb.label("Target"),
        full_width=True, on_change=lambda name: change(**nb.for_target(name, get_state(), _c)))
    counts_input = mo.ui.dropdown(
        nb.names(sorted(_c.counts), _s.counts), value=_s.counts, label=nb.label("Token counts"), full_width=True,
        on_change=lambda name: change(counts=name))
    latency_input = mo.ui.dropdown(
        nb.names(_c.latency_names(), _s.latency), value=_s.latency, label=nb.label("Latency"), full_width=True,
        on_change=lambda name: change(**nb.for_latency(name, _c)))
    return counts_input, latency_input, target_input


@app.cell
def decoding_inputs(change, get_catalogue, get_state):
    _c, _s = get_catalogue(), get_state()
    acceptance_input = mo.ui.dropdown(
        {"alpha, assumed": "", **{name: name for name in nb.names(sorted(_c.acceptance), _s.acceptance)}},
        value=_s.acceptance or "alpha, assumed", label=nb.label("Acceptance"),
        full_width=True, on_change=lambda name: change(acceptance=name))
    alpha_input = mo.ui.slider(
        0.05, 0.95, 0.05, value=nb.snapped(_s.alpha), label=nb.label("alpha at full vocabulary"), show_value=True,
        full_width=True, debounce=True, on_change=lambda a: change(alpha=round(a, 2)))
    k_input = mo.ui.slider(1, 16, 1, value=_s.k, label=nb.label("Draft length K"), show_value=True, full_width=True,
                           debounce=True, on_change=lambda k: change(k=k))
    decode_input = mo.ui.number(start=0, value=_s.decode_tps or 0, label=nb.label("Target tokens/s (0: modelled)"),
                                full_width=True, debounce=True,
                                on_change=lambda t: change(decode_tps=float(t) if t and t >= 0.01 else None))
    return acceptance_input, alpha_input, decode_input, k_input


@app.cell
def serving_inputs(change, get_state):
    _s = get_state()
    draft_tp_input = mo.ui.dropdown(nb.powers(64, _s.draft_tp), value=str(_s.draft_tp), label=nb.label("Draft TP"),
                                    full_width=True, on_change=lambda n: change(draft_tp=n))
    target_tp_input = mo.ui.dropdown(nb.powers(64, _s.target_tp), value=str(_s.target_tp), label=nb.label("Target TP"),
                                     full_width=True, on_change=lambda n: change(target_tp=n))
    batch_input = mo.ui.dropdown(nb.powers(256, _s.batch), value=str(_s.batch), label=nb.label("Batch"),
                                 full_width=True, on_change=lambda n: change(batch=n))
    dtype_input = mo.ui.dropdown(list(nb.DTYPES), value=_s.dtype, label=nb.label("dtype"), full_width=True,
                                 on_change=lambda name: change(dtype=name))
    engine_input = mo.ui.dropdown(list(nb.ENGINES), value=_s.engine, label=nb.label("Engine"), full_width=True,
                                  on_change=lambda name: change(engine=name))
    ranking_input = mo.ui.dropdown(list(RANKINGS), value=_s.ranking, label=nb.label("Ranking"), full_width=True,
                                   on_change=lambda name: change(ranking=name))
    origin_input = mo.ui.radio(["from scratch", "fine-tune, size locked"],
                               value="fine-tune, size locked" if _s.locked else "from scratch",
                               label=nb.label("Drafter"),
                               on_change=lambda v: change(locked=(_s.d or 32_000) if v.startswith("fine") else None))
    locked_input = mo.ui.number(start=64, step=1, value=_s.locked or 32_000, label=nb.label("Checkpoint's D"),
                                full_width=True, debounce=True, on_change=lambda n: change(locked=int(n)))
    return (batch_input, draft_tp_input, dtype_input, engine_input, locked_input, origin_input, ranking_input,
            target_tp_input)


@app.cell
def upload_input(explorer_widget, get_catalogue, set_catalogue, set_state, get_state, set_upload_note):
    def _received(files):
        catalogue, state, note = nb.receive(files, get_catalogue(), nb.with_size(get_state(), explorer_widget))
        set_catalogue(catalogue)
        set_state(state)
        set_upload_note(note)

    upload = mo.ui.file(kind="area", multiple=True, max_size=nb.MAX_UPLOAD, on_change=_received,
                        label="Drop counts, latency, acceptance, decision, config or mapping files")
    return (upload,)


@app.cell
def sidebar(acceptance_input, alpha_input, batch_input, counts_input, decode_input, draft_tp_input, dtype_input,
            engine_input, get_state, get_upload_note, k_input, latency_input, locked_input, origin_input,
            ranking_input, target_input, target_tp_input, upload):
    mo.sidebar(
        mo.vstack([
            target_input, counts_input, latency_input, acceptance_input,
            *([] if get_state().acceptance else [alpha_input]), k_input, decode_input,
            mo.hstack([draft_tp_input, target_tp_input], widths="equal"),
            mo.hstack([batch_input, dtype_input], widths="equal"),
            mo.hstack([engine_input, ranking_input], widths="equal"),
            origin_input, *([locked_input] if get_state().locked else []),
            upload, *([nb.notice(*get_upload_note())] if get_upload_note() else []),
        ], gap=0.4),
        width="300px",
    )
    return


@app.cell
def compute(get_catalogue, get_state):
    screen, problem = nb.try_screen(get_state(), get_catalogue())
    return problem, screen


@app.cell
def make_explorer(set_state):
    explorer_widget = nb.explorer()
    nb.on_restore(explorer_widget, set_state)
    explorer = mo.ui.anywidget(explorer_widget)
    explorer
    return explorer, explorer_widget


@app.cell
def feed(explorer_widget, first, get_state, link_notices, problem, screen):
    nb.feed(explorer_widget, screen, link_notices if get_state() == first else ())
    fed = nb.notice("warn", problem) if problem else None
    fed
    return (fed,)


@app.cell
def pictures(explorer_widget, fed, get_catalogue, get_state, screen):
    _ = fed
    nb.draw(explorer_widget, screen, get_state(), get_catalogue())
    return


@app.cell
def tabs():
    tab = mo.ui.tabs(dict.fromkeys(nb.TABS, ""))
    tab
    return (tab,)


@app.cell
def tab_content(explorer, explorer_widget, get_state, screen, tab):
    mo.stop(screen is None)
    _ = explorer  # runs again when its size comes to rest
    nb.tab_of(tab.value, screen, nb.size_of(explorer_widget, screen), explorer_widget.pin, get_state().decision)
    return


if __name__ == "__main__":
    app.run()
