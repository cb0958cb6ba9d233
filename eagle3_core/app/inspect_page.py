"""What the cells of ``apps/inspect_checkpoint.py`` call: the page of ``eagle3 inspect``, made by one escaping template.

A path is one of those found in the data folders, an upload, or, where the server
answers on this machine alone, any path of it.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from eagle3_core.app.sources import Catalogue, catalogue, data_folders, get_counts, get_target
from eagle3_core.app.state import AppState, to_query
from eagle3_core.app.widget import app_file
from eagle3_core.corpus.counts import TokenCounts
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import read_json
from eagle3_core.inspect.coverage import MappingCoverage, coverage_of, size_standing
from eagle3_core.inspect.facts import Facts
from eagle3_core.inspect.headers import find_weights
from eagle3_core.inspect.read import inspect_path
from eagle3_core.inspect.rules import CONSUMERS, Finding, lint, who_could_load
from eagle3_core.inspect.summary import dimensions
from eagle3_core.report.html import web_file
from eagle3_core.specs.target import target_from_config
from eagle3_core.vocab.mapping import MOST_IDS

LOG = logging.getLogger("eagle3")
ANY_PATH = "EAGLE3_ANY_PATH"
"""Set by our server on the loopback address: whoever asks may read this machine's files anyway."""
MAX_UPLOAD = 200 << 20
SUFFIXES = (".pt", ".npy", ".safetensors", ".gguf")
AUTOMATIC, NONE, ANYONE = "automatic", "none", "those it is written for"
WELCOME = ("Give a path or drop files to see what a checkpoint, a mapping or a run is, what is wrong with it, and what "
           "its draft vocabulary covers. Only headers are read.")
UNEXPECTED = "This could not be inspected; the server's log has the details."


@dataclass(frozen=True)
class Asked:
    """The page's state, as a link carries it."""

    path: str = ""
    counts: str = AUTOMATIC
    consumer: str = ""

    def query(self) -> dict[str, str]:
        default = Asked()
        return {k: v for k, v in vars(self).items() if v != getattr(default, k)}


def asked_in(query: dict[str, Any]) -> Asked:
    """Junk in a link gives the default."""
    def text(name: str) -> str:
        value = query.get(name, "")
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, str) and len(value) <= 500 and value.isprintable() else ""

    consumer = text("consumer")
    return Asked(text("path"), text("counts") or AUTOMATIC, consumer if consumer in CONSUMERS else "")


def found() -> dict[str, Path]:
    """Checkpoints and mappings of the data folders, two levels deep, by their relative path."""
    out: dict[str, Path] = {}
    for folder in data_folders():
        for path in sorted([folder, *folder.glob("*"), *folder.glob("*/*")]):
            if not path.name.isprintable() or not path.resolve().is_relative_to(folder.resolve()):
                continue
            label = str(path.relative_to(folder)) if path != folder else folder.name
            try:
                if path.is_dir() and (find_weights(path) is not None or (path / "run.json").is_file()):
                    out.setdefault(label, path)
            except Eagle3Error:
                continue  # a link out of its folder: opened by nobody
            if path.is_file() and path.name.endswith(SUFFIXES) and "t2d" not in path.name and (
                    not path.name.endswith(".safetensors") or path.parent == folder):
                out.setdefault(label, path)
    return out


@functools.cache
def _uploads() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="eagle3-inspect-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def received(files: Sequence[Any]) -> str:
    """Keep what was uploaded together in one folder; its name is what a link carries. Raises Eagle3Error."""
    named = {}
    for file in files:
        base = os.path.basename(file.name.replace("\\", "/"))[:120]
        if not base or base.startswith(".") or not base.isprintable():
            raise Eagle3Error("cannot be a file's name", found=repr(file.name[:80]))
        named[base] = file.contents
    if sum(map(len, named.values())) > MAX_UPLOAD:
        raise Eagle3Error("is too large to upload", expected=f"at most {MAX_UPLOAD:,} bytes",
                          fix="give the path, or config.json and the mapping alone")
    digest = hashlib.sha256(b"".join(hashlib.sha256(n.encode() + named[n]).digest() for n in sorted(named))).hexdigest()
    folder = _uploads() / digest[:24]
    folder.mkdir(exist_ok=True)
    for base, content in named.items():
        (folder / base).write_bytes(content)
    return f"upload~{digest[:24]}"


def resolve(name: str) -> Path:
    """The path behind a name. Raises Eagle3Error for one that may not be opened or is not there."""
    if name.startswith("upload~"):
        folder = _uploads() / name.removeprefix("upload~")
        if not name[7:].isalnum() or not folder.is_dir():
            raise Eagle3Error("the upload is gone", fix="load the files again")
        files = sorted(folder.iterdir())
        return files[0] if len(files) == 1 else folder
    known = found()
    if name in known:
        return known[name]
    if not os.environ.get(ANY_PATH):
        raise Eagle3Error("is not in the data folders", where=name[:120], fix="upload it, or start with --data FOLDER")
    return Path(name).expanduser()


def counts_names(c: Catalogue) -> list[str]:
    return [AUTOMATIC, NONE, *sorted(c.counts)]


def counts_for(asked: Asked, facts: Facts, c: Catalogue) -> tuple[str, TokenCounts | None]:
    """The counts to measure on: those asked for, or the first loaded ones of this vocabulary."""
    if asked.counts == NONE or facts.mapping is None:
        return "", None
    if asked.counts != AUTOMATIC:
        return asked.counts, get_counts(c, asked.counts)
    vocab = facts.vocab_size
    name = next((n for n in sorted(c.counts) if get_counts(c, n).vocab_size == vocab), None)
    return (name, get_counts(c, name)) if name else ("", None)


def baseline(facts: Facts, counts: str, c: Catalogue) -> str | None:
    """The main app with this size as the inherited one, on a target of this vocabulary; None without such a target."""
    size, vocab, width = facts.draft_vocab_size, facts.vocab_size, facts.target_hidden_size
    if size is None or vocab is None:
        return None
    targets = [(n, get_target(c, n)) for n in c.target_names() if n not in c.targets or _is_target(c.targets[n])]
    fitting = [n for n, t in targets if t.vocab_size == vocab]
    exact = [n for n, t in targets if t.vocab_size == vocab and t.hidden_size == width]
    name = next(iter(exact or fitting), None)
    if name is None or not 0 < size <= vocab:
        return None
    state = AppState(target=name, d=size, locked=size)
    if counts:
        state = replace(state, counts=counts)
    return f"/choose/?{to_query(state)}"


def _is_target(config: Path) -> bool:
    """A config.json of the data folders may be a drafter's, or no model's at all."""
    try:
        value = read_json(config, limit=4 << 20)
        if not isinstance(value, dict) or {"draft_vocab_size", "transformer_layer_config"} & set(value):
            return False
        target_from_config(config)
    except Eagle3Error:
        return False
    return True


def render(asked: Asked) -> tuple[str, str | None]:
    """(the page's markup, what is wrong in one line). Nothing is shown of what could not be read."""
    if not asked.path:
        return "", None
    try:
        c = catalogue()
        facts = inspect_path(resolve(asked.path))
        name, counts = counts_for(asked, facts, c)
        findings = lint(facts, asked.consumer or None, counts=counts)
        covered, said = None, None
        if counts is not None:
            try:
                covered = coverage_of(facts, counts)
            except Eagle3Error as error:
                said = f"Coverage cannot be measured: {error}."
        elif facts.mapping is not None and asked.counts != NONE:
            said = "No loaded counts have this vocabulary: count text with the target's tokenizer to see coverage."
        return markup(facts, findings, covered, counts=counts, counts_name=name, consumer=asked.consumer,
                      link=baseline(facts, name, c), coverage_said=said), None
    except Eagle3Error as error:
        if not os.environ.get(ANY_PATH) or asked.path.startswith("upload~"):
            # Where files lie on the server is nobody else's business.
            error.where = Path(str(error.where)).name if error.where is not None else None
        return "", str(error)
    except Exception:
        LOG.exception("a path could not be inspected")
        return "", UNEXPECTED


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(app_file("inspect.html.j2"))


def markup(
    facts: Facts, findings: Sequence[Finding], covered: MappingCoverage | None, *, counts: TokenCounts | None = None,
    counts_name: str = "", consumer: str = "", link: str | None = None, coverage_said: str | None = None,
) -> str:
    """Everything as HTML; what comes from files is escaped by the template."""
    css = ("" if os.environ.get("EAGLE3_SERVED") else web_file("explorer.css")) + app_file("inspect.css")
    total = sum(p.parameters for p in facts.parts) or 1
    totals = ", ".join(f"{facts.parameters(s):,} {s}" for s in ("trainable", "frozen", "shared with the target")
                       if facts.parameters(s))
    return _template().render(
        css=Markup(css),
        what=facts.what[:1].upper() + facts.what[1:],
        errors=sum(f.severity == "error" for f in findings), warnings=sum(f.severity == "warning" for f in findings),
        dimensions=[(name, f"{value:,}" if isinstance(value, int) else value)
                    for name, value in dimensions(facts).items() if value is not None],
        size=size_standing(facts).why if facts.draft_vocab_size is not None else None,
        draft_vocab=facts.draft_vocab_size, baseline=link, consumer=consumer,
        findings=[vars(f) | {"links": ", ".join(f.links), "users": ", ".join(u for u in f.consumers if u)}
                  for f in findings],
        parts=[{"name": p.name, "parameters": p.parameters, "standing": p.standing,
                "kind": p.standing.split()[0], "share": round(100 * p.parameters / total, 1),
                "stored": f"{p.stored / 2**20:,.1f} MiB" if p.stored else "not stored"} for p in facts.parts],
        totals=totals, picture=picture(facts, counts), coverage=_coverage(covered, counts_name),
        coverage_said=coverage_said,
        loads=list(who_could_load(facts)) if facts.kind != "token counts" else [],
        evidence=[*facts.evidence, *facts.notes],
    )


def _coverage(found: MappingCoverage | None, counts_name: str) -> dict[str, Any] | None:
    if found is None:
        return None
    forced = found.forced_missing.head(8).to_dicts()
    return {
        "counts": counts_name,
        "said": f"{found.coverage:.2%} of {found.tokens:,} tokens; the best {found.draft_vocab:,} ids have "
                f"{found.best_heldout:.2%} held out, {found.best_in_sample:.2%} in sample. Worst domain: "
                f"{found.worst_domain}, {found.worst_coverage:.2%}. {found.unseen:,} of its ids never occur.",
        "domains": [{"domain": r["domain"], "tokens": r["tokens"], "mine": f"{r['coverage']:.2%}",
                     "best": f"{r['best']:.2%}"} for r in found.by_domain.to_dicts()],
        "lost": [{"text": r["text"], "role": r["role"], "count": r["count"], "share": f"{100 * r['share']:.2g} %"}
                 for r in found.lost.head(10).to_dicts()],
        "forced": f"{found.forced_missing.height:,} tokens that should be forced are missing: "
                  + ", ".join(f"{r['text']} ({r['role']})" for r in forced) if forced else "",
    }


BINS = 240


def picture(facts: Facts, counts: TokenCounts | None) -> dict[str, Any] | None:
    """Share kept in equal ranges of ids, and of rank (log-spaced) where counts are at hand; None without ids."""
    ids, vocab = facts.mapping.ids if facts.mapping is not None else None, facts.vocab_size
    if ids is None or vocab is None or not 2 <= vocab <= MOST_IDS:
        return None
    kept = np.zeros(vocab, dtype=bool)
    kept[ids[(ids >= 0) & (ids < vocab)]] = True
    edges = np.unique(np.linspace(0, vocab, min(BINS, vocab) + 1).astype(np.int64))
    shares = np.add.reduceat(kept, edges[:-1]) / np.diff(edges)
    quarter = kept[: max(vocab // 4, 1)].mean()
    ranks, ranked = None, ""
    if counts is not None and counts.vocab_size == vocab:
        from eagle3_core.vocab.ranking import rank

        by_rank = kept[rank(counts, force=False).order]
        size = int(kept.sum())
        ranked = f"Of the {size:,} most frequent ids {by_rank[:size].mean() if size else 0:.0%} are kept."
        cuts = np.unique(np.geomspace(1, vocab, 121).astype(np.int64)) - 1
        cuts[-1] = vocab
        at = np.log(cuts + 1) / np.log(vocab + 1) * 960
        ranks = [{"x": round(float(x), 2), "width": round(float(w), 2), "share": round(float(s), 3)} for x, w, s in
                 zip(at[:-1], np.diff(at), np.add.reduceat(by_rank, cuts[:-1]) / np.diff(cuts), strict=True)]
    return {
        "id": [round(float(s), 3) for s in shares], "rank": ranks, "ranked": ranked, "vocab": vocab,
        "said": f"{int(kept.sum()):,} of {vocab:,} target ids are kept; of the lowest quarter {quarter:.0%}, "
                f"of the rest {kept[max(vocab // 4, 1):].mean():.0%}.",
    }
