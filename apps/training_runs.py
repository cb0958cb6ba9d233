# /// script
# requires-python = ">=3.11"
# [tool.marimo.display]
# theme = "system"
# ///
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="EAGLE-3 training runs", css_file="choose_vocab.css")

with app.setup:
    import dataclasses

    import marimo as mo

    from eagle3_core.app import runs_page as page
    from eagle3_core.app.notebook import notice
    from eagle3_core.errors import Eagle3Error


@app.cell
def start():
    params = mo.query_params()
    get_asked, set_asked = mo.state(page.asked_in(params.to_dict()))
    get_form, set_form = mo.state(page.Form())
    get_note, set_note = mo.state(None)
    return get_asked, get_form, get_note, params, set_asked, set_form, set_note


@app.cell
def update(get_asked, get_form, params, set_asked, set_form, set_note):
    def fill(**values):
        set_form(dataclasses.replace(get_form(), **values))

    def look(**values):
        asked = dataclasses.replace(get_asked(), **values)
        if asked != get_asked():
            params["runs"], params["quantity"] = ",".join(asked.runs), asked.quantity
            set_asked(asked)

    def act(work):
        try:
            set_note(("success", work()))
        except Eagle3Error as error:
            set_note(("warn", str(error)))

    return act, fill, look


@app.cell
def launch_inputs(fill, get_form):
    _f = get_form()
    name_input = mo.ui.text(value=_f.name, label="Name", full_width=True, on_change=lambda v: fill(name=v.strip()))
    target_input = mo.ui.text(value=_f.target, label="Target folder, with weights", full_width=True,
                              on_change=lambda v: fill(target=v))
    data_input = mo.ui.text_area(value=_f.text, label="Chat files or hidden states, one a line", rows=2,
                                 full_width=True, on_change=lambda v: fill(text=v))
    steps_input = mo.ui.number(1, 10_000_000, value=_f.steps, label="Steps", full_width=True,
                               on_change=lambda v: fill(steps=int(v or 1)))
    tokens_input = mo.ui.number(8, 1 << 20, value=_f.batch_tokens, label="Tokens a step", full_width=True,
                                on_change=lambda v: fill(batch_tokens=int(v or 8)))
    unrolled_input = mo.ui.slider(1, 7, 1, value=_f.unrolled, label="Unrolled draft steps", show_value=True,
                                  full_width=True, debounce=True, on_change=lambda v: fill(unrolled=v))
    where_input = mo.ui.dropdown([*page.HERE, *page.ELSEWHERE], value=_f.where, label="Runs by", full_width=True,
                                 on_change=lambda v: fill(where=v))
    return data_input, name_input, steps_input, target_input, tokens_input, unrolled_input, where_input


@app.cell
def launch_buttons(act, get_asked, get_form, look):
    def _begin(probe):
        def work():
            name = page.launch_now(get_form(), get_asked().state, probe=probe)
            look(runs=(name, *(r for r in get_asked().runs if r != name))[: page.MOST_COMPARED])
            return f"{name} is started; it goes on without this page"

        act(work)

    _can = page.may_launch() and get_form().where in page.HERE
    probe_button = mo.ui.button(label=f"Probe {page.PROBE_STEPS} steps", disabled=not _can,
                                on_click=lambda _: _begin(True))
    launch_button = mo.ui.button(label="Launch", kind="success", disabled=not _can, on_click=lambda _: _begin(False))
    return launch_button, probe_button


@app.cell
def run_inputs(act, get_asked, look, refresh):
    refresh.value
    _found = page.listed()
    _names = [run.name for run in _found]
    _chosen = [name for name in get_asked().runs if name in _names]
    runs_input = mo.ui.multiselect(_names, value=_chosen, label="Show and compare", full_width=True,
                                   max_selections=page.MOST_COMPARED, on_change=lambda v: look(runs=tuple(v)))
    _quantities = page.quantities_of([run for run in _found if run.name in _chosen])
    _quantity = get_asked().quantity
    quantity_input = mo.ui.dropdown(_quantities, value=_quantity if _quantity in _quantities else None,
                                    label="Quantity", full_width=True, on_change=lambda v: look(quantity=v or ""))
    _first = next((run for run in _found if _chosen and run.name == _chosen[0]), None)
    _alive = _first is not None and _first.alive
    stop_button = mo.ui.button(label=f"Stop {_first.name}" if _first else "Stop", kind="danger",
                               disabled=not (_alive and page.may_launch()),
                               on_click=lambda _: act(lambda: page.stop(_chosen[0])))
    resume_button = mo.ui.button(
        label=f"Resume {_first.name}" if _first else "Resume",
        disabled=not (_first and page.may_launch() and _first.state in ("stopped", "dead", "failed")),
        on_click=lambda _: act(lambda: page.resume(_chosen[0])))
    measure_button = mo.ui.button(
        label="Measure acceptance at every size",
        disabled=not (_first and page.may_launch() and _first.project == "eagle3" and _first.checkpoints),
        on_click=lambda _: act(lambda: page.measure(_chosen[0])))
    return measure_button, quantity_input, resume_button, runs_input, stop_button


@app.cell
def clock():
    refresh = mo.ui.refresh(options=["2s", "10s", "60s"], default_interval="2s", label="Refresh")
    return (refresh,)


@app.cell
def sidebar(data_input, launch_button, name_input, probe_button, steps_input, target_input, tokens_input,
            unrolled_input, where_input):
    mo.sidebar(
        mo.vstack([
            mo.md("**Train the size on screen**"), name_input, target_input, data_input, steps_input, tokens_input,
            unrolled_input, where_input, mo.hstack([probe_button, launch_button], justify="start", wrap=True),
        ], gap=0.6),
        width="300px",
    )
    return


@app.cell
def cost_view(get_asked, get_form, refresh):
    refresh.value
    # Made by a template that escapes everything it is given.
    mo.Html(page.render_cost(get_form(), get_asked().state))
    return


@app.cell
def controls(get_note, measure_button, quantity_input, refresh, resume_button, runs_input, stop_button):
    mo.vstack([
        *([notice(*get_note())] if get_note() else []),
        mo.hstack([runs_input, quantity_input], widths="equal", wrap=True),
        mo.hstack([stop_button, resume_button, measure_button, refresh], justify="start", wrap=True),
    ])
    return


@app.cell
def view(get_asked, refresh):
    refresh.value
    mo.Html(page.render(get_asked()))
    return


if __name__ == "__main__":
    app.run()
