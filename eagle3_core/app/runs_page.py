"""What the cells of ``apps/training_runs.py`` call: cost before launch, runs as they stand on disk, curves, links.

The page holds nothing of a run: everything is read from its folder at each
refresh, so two windows see the same and a closed one changes nothing. Runs are
started, stopped and resumed only where the server answers on this machine alone.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jinja2
from markupsafe import Markup

from eagle3_core.app.inspect_page import ANY_PATH
from eagle3_core.app.screen import screen_of
from eagle3_core.app.sources import DATA_VARIABLE, add_upload, catalogue, find, get_target
from eagle3_core.app.state import AppState, parse_query, to_query
from eagle3_core.app.widget import app_file
from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import decision_json
from eagle3_core.errors import Eagle3Error
from eagle3_core.export.commands import launch_commands
from eagle3_core.files import write_text
from eagle3_core.report.html import web_file
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.parameters import count_parameters, hidden_state_bytes, training_memory
from eagle3_core.training import launch, runs
from eagle3_core.training.config import TrainConfig, load_config
from eagle3_core.training.run_folder import now
from eagle3_core.training.runs import RunView

Where = Literal["local", "torchrun", "slurm", "specforge", "speculators"]
HERE, ELSEWHERE = ("local", "torchrun", "slurm"), ("specforge", "speculators")
PROBE_STEPS = 10
PROBE = "-probe"
MOST_COMPARED = 6
FIRST_SHOWN = ("loss", "eval/tau", "tau", "alpha_1", "eval/alpha_1", "train/loss")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True)
class Asked:
    """What a link carries: the runs looked at, the quantity compared, and the main app's state for a launch."""

    runs: tuple[str, ...] = ()
    quantity: str = ""
    state: AppState = field(default_factory=AppState)


@dataclass(frozen=True)
class Form:
    """A launch as filled in. ``text`` are chat files or folders of hidden states, one a line."""

    name: str = "run"
    target: str = ""
    text: str = ""
    steps: int = 400
    batch_tokens: int = 1024
    unrolled: int = 3
    lr: float = 1e-3
    where: Where = "local"
    processes: int = 1


def asked_in(query: Mapping[str, Any]) -> Asked:
    """Junk in a link gives the default."""
    flat = {key: value[0] if isinstance(value, list) and value else value for key, value in query.items()}
    state, _ = parse_query({key: str(value) for key, value in flat.items()})
    names = [name for name in str(flat.get("runs", "")).split(",") if _NAME.fullmatch(name)]
    quantity = str(flat.get("quantity", ""))
    return Asked(tuple(names[:MOST_COMPARED]), quantity if quantity.isprintable() and len(quantity) < 80 else "", state)


def root() -> Path:
    """``runs`` in the first data folder, else where the server was started."""
    first = os.environ.get(DATA_VARIABLE, "").split(os.pathsep)[0]
    return (Path(first) if first else Path()) / "runs"


def may_launch() -> bool:
    return bool(os.environ.get(ANY_PATH))


def listed() -> list[RunView]:
    return runs.find_runs(root()) if root().is_dir() else []


def named(name: str) -> Path:
    """The folder of a listed run. Raises Eagle3Error for any other name."""
    if not _NAME.fullmatch(name) or not (root() / name).is_dir() or (root() / name).is_symlink():
        raise Eagle3Error("no run of that name", found=repr(name[:60]))
    return root() / name


def size_of(state: AppState) -> int:
    """The size on screen: chosen, or recommended."""
    return screen_of(state, catalogue()).size


def config_of(form: Form, state: AppState, *, probe: bool = False) -> TrainConfig:
    """The run's configuration. Raises Eagle3Error naming what is missing or wrong in the form."""
    name = form.name + (PROBE if probe else "")
    if not _NAME.fullmatch(name):
        raise Eagle3Error("name of the run", found=repr(form.name), expected="letters, digits, dots, dashes")
    paths = [Path(line.strip()).expanduser() for line in form.text.splitlines() if line.strip()]
    if not paths:
        raise Eagle3Error("there is nothing to train on", expected="chat files, or folders of hidden states")
    absent = next((path for path in paths if not path.exists()), None)
    if absent is not None:
        raise Eagle3Error("is not there", where=absent)
    features = [path for path in paths if path.is_dir()]
    if features and len(features) < len(paths):
        raise Eagle3Error("mixes hidden states and text", where=features[0], fix="train on one of them")
    c = catalogue()
    counts = find("counts", c, state.counts)
    if counts is None:
        raise Eagle3Error("the counts on screen are gone", found=repr(state.counts))
    config = c.targets.get(state.target)
    target = form.target.strip() or (str(config.parent) if config is not None else "")
    if not target:
        raise Eagle3Error("the target's weights are needed", expected="its folder", fix="fill in the target folder")
    return load_config(defaults={
        "model": {"target": target, "counts": str(counts), "draft_vocab": size_of(state), "ranking": state.ranking},
        "data": {"features" if features else "text": [str(path) for path in paths], "batch_tokens": form.batch_tokens,
                 "max_length": min(2048, form.batch_tokens)},
        "loss": {"steps": form.unrolled},
        "optim": {"lr": form.lr, "steps": PROBE_STEPS if probe else form.steps},
        "run": {"out": str(root().absolute() / name), "log_every": 1 if probe else 10},
    })


def launch_now(form: Form, state: AppState, *, probe: bool = False) -> str:
    """Start it, detached, with the decision on screen beside it; returns the run's name."""
    if not may_launch():
        raise Eagle3Error("runs are started only from the machine itself", fix="eagle3 train, or a server on 127.0.0.1")
    if form.where not in HERE:
        raise Eagle3Error("this runs elsewhere", found=form.where, fix="copy the command")
    config = config_of(form, state, probe=probe)
    out = config.run.out
    screen = screen_of(state, catalogue())
    decision = decide(screen.inputs, screen.size, created=now(), hashes=screen.hashes())
    if (out / "run.json").exists() or (out / runs.LAUNCH).exists():
        raise Eagle3Error("already holds a run", where=out.name, fix="choose another name")
    write_text(out / "launch.decision.json", decision_json(decision))
    config = config.model_copy(update={"run": config.run.model_copy(update={"decision": out / "launch.decision.json"})})
    launch.launch(config, how=form.where, processes=form.processes)  # type: ignore[arg-type]
    return out.name


def stop(name: str) -> str:
    if not may_launch():
        raise Eagle3Error("runs are stopped only from the machine itself")
    return launch.stop(named(name))


def resume(name: str) -> str:
    if not may_launch():
        raise Eagle3Error("runs are resumed only from the machine itself")
    launch.resume(named(name))
    return "resumed from its last checkpoint"


def measure(name: str) -> str:
    if not may_launch():
        raise Eagle3Error("acceptance is measured only from the machine itself", fix="eagle3 runs acceptance")
    launch.measure(named(name), "latest")
    return "acceptance of the last checkpoint is being measured; its link appears here"


def commands(form: Form, state: AppState) -> dict[str, str]:
    """What to run on a cluster that trains with SpecForge or speculators."""
    target = get_target(catalogue(), state.target)
    return launch_commands(form.where, target, drafter_for(target, size_of(state)), k=state.k,
                           draft_tp=state.draft_tp, target_tp=state.target_tp)


def cost(form: Form, state: AppState) -> list[tuple[str, str, str]]:
    """(what, figure, where it comes from) of a launch, before it is made."""
    target, size = get_target(catalogue(), state.target), size_of(state)
    counts = count_parameters(drafter_for(target, size))
    memory = training_memory(counts, "float32")
    tokens = form.steps * form.batch_tokens
    rows = [
        ("Target, D", f"{target.name}, {size:,}", "on screen"),
        ("Trainable parameters", f"{counts.trainable:,}", "derived"),
        ("of them lm_head", f"{counts.lm_head:,}", "derived"),
        ("Weights, gradients, AdamW in fp32",
         f"{(memory.weights + memory.masters + memory.gradients + memory.optimizer) / 1e9:,.2f} GB", "derived"),
        ("Tokens trained on", f"{tokens:,}", "steps times tokens a step"),
        ("Hidden states of as many tokens", f"{hidden_state_bytes(tokens, target.hidden_size) / 1e9:,.2f} GB on disk",
         "derived; read once, if training offline"),
    ]
    pace = probe_pace(form.name)
    rows.append(("Time", "run the probe first", f"{PROBE_STEPS} steps of the same run") if pace is None else
                ("Time", _hours(pace * form.steps), f"measured: {pace:.2f} s a step in the probe"))
    return rows


def probe_pace(name: str) -> float | None:
    """Seconds a step of this name's probe, its first two steps left out: they warm up."""
    folder = root() / f"{name}{PROBE}"
    if not _NAME.fullmatch(name) or not (folder / "metrics.jsonl").is_file():
        return None
    return runs.seconds_a_step(folder, skip=2)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 5400 else f"{seconds / 60:,.0f} min"


@functools.cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(app_file("runs.html.j2"))


def _css() -> Markup:
    return Markup(("" if os.environ.get("EAGLE3_SERVED") else web_file("explorer.css")) + app_file("runs.css"))


def render_cost(form: Form, state: AppState) -> str:
    """The cost table, or the commands for elsewhere; Eagle3Error becomes its line."""
    try:
        files = commands(form, state) if form.where in ELSEWHERE else {}
        return _template().render(part="cost", css=_css(), rows=cost(form, state), files=files)
    except Eagle3Error as error:
        return _template().render(part="problem", css=_css(), said=str(error))


def render(asked: Asked) -> str:
    """The list, and the chosen runs: state, curves, checkpoints, the log of each."""
    found = listed()
    shown = [run for name in asked.runs for run in found if run.name == name]
    quantities = quantities_of(shown)
    quantity = asked.quantity if asked.quantity in quantities else next(iter(quantities), "")
    first = dict.fromkeys([quantity, *(q for q in FIRST_SHOWN if q in quantities)])
    pictures = [picture({run.name: over_tokens(run, name) for run in shown}, name) for name in first if name]
    return _template().render(
        part="runs", css=_css(), where=str(root()), pictures=pictures[:4],
        rows=[{"run": run, "loss": _figure(run.last("loss") if "loss" in run.curves else run.last("train/loss")),
               "left": _left(run)} for run in found],
        details=[{"run": run, "colour": COLOURS[i % len(COLOURS)], "tail": runs.log_tail(run.folder, 12),
                  "share": 100 * run.step / run.steps if run.steps else None, "left": _left(run),
                  "acceptance": acceptance_links(run, asked.state)} for i, run in enumerate(shown)],
    )


def quantities_of(shown: Sequence[RunView]) -> list[str]:
    """Recorded by all of them, those worth seeing first."""
    if not shown:
        return []
    common = set.intersection(*(set(run.curves) for run in shown)) - {"tokens", "epoch"}
    return [*(q for q in FIRST_SHOWN if q in common), *sorted(common - set(FIRST_SHOWN))]


def over_tokens(run: RunView, name: str) -> list[tuple[float, float]]:
    """(tokens, value), or (step, value) where tokens are not recorded at every step."""
    values, tokens = run.curves[name], run.curves.get("tokens", {})
    known = all(step in tokens for step in values)
    return [(tokens[step] if known else step, value) for step, value in values.items()]


def picture(
    series: dict[str, list[tuple[float, float]]], name: str, width: int = 460, height: int = 150
) -> dict[str, Any]:
    """Polylines in a box of ``width`` by ``height``, at most 400 points a run, and the ends of both axes."""
    points = [p for line in series.values() for p in line]
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    y0, y1 = min(y for _, y in points), max(y for _, y in points)
    lines = []
    for index, (run, line) in enumerate(series.items()):
        kept = line[:: max(1, len(line) // 400)]
        kept = kept if kept[-1] == line[-1] else [*kept, line[-1]]
        lines.append({"run": run, "colour": COLOURS[index % len(COLOURS)], "last": _figure(line[-1][1]),
                      "points": " ".join(f"{(x - x0) / ((x1 - x0) or 1) * width:.1f},"
                                         f"{height - (y - y0) / ((y1 - y0) or 1) * height:.1f}" for x, y in kept)})
    return {"name": name, "lines": lines, "width": width, "height": height, "x": (f"{x0:,.0f}", f"{x1:,.0f}"),
            "y": (_figure(y0), _figure(y1))}


def acceptance_links(run: RunView, state: AppState) -> list[dict[str, str]]:
    """Links to the main app with what was measured of this run's checkpoints in the place of alpha."""
    links = []
    for file in sorted(run.folder.glob("**/*.acceptance.json"))[-4:]:
        try:
            _, _, name = add_upload(catalogue(), f"{run.name}-{file.name}", file.read_bytes())
        except Eagle3Error as error:
            links.append({"name": file.name, "href": "", "said": str(error)})
            continue
        links.append({"name": file.name, "said": "", "href": f"/choose/?{to_query(replace(state, acceptance=name))}"})
    return links


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _left(run: RunView) -> str:
    left = runs.seconds_left(run)
    return "" if left is None else f"{_hours(left)} left"
