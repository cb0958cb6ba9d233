"""The export bundle: each consumer's files, the decision, the report, and a manifest of hashes.

The same decision gives the same bytes, as a folder or a zip, from the command
line or from the app.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from eagle3_core.decide.conclude import decide
from eagle3_core.decide.record import Decision, decision_json, decision_markdown
from eagle3_core.decide.restore import target_of
from eagle3_core.decide.tradeoff import TradeoffInputs
from eagle3_core.errors import Eagle3Error
from eagle3_core.export.configs import CONSUMERS, check_consumer
from eagle3_core.export.consumer_files import consumer_files
from eagle3_core.files import canonical_json, write_bytes
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.target import TargetSpec

_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def bundle_files(
    decision: Decision,
    target: TargetSpec,
    consumers: Sequence[str] = CONSUMERS,
    *,
    report_html: str | None = None,
) -> dict[str, bytes]:
    """Relative path -> bytes of the whole bundle, manifest included.

    Without a token set (stand-in counts) the mapping files are left out.
    """
    drafter = drafter_for(target, decision.choice.draft_vocab)
    mapping = decision.token_set.mapping(target.vocab_size) if decision.token_set else None
    ranked = decision.token_set.ranked(target.vocab_size) if decision.token_set else None
    s = decision.setting
    files: dict[str, bytes] = {
        "decision.json": decision_json(decision).encode(),
        "DECISION.md": decision_markdown(decision).encode(),
    }
    for name in consumers:
        check_consumer(name)
        parts = consumer_files(name, target, drafter, mapping, k=s.k, draft_tp=s.draft_tp, target_tp=s.target_tp,
                               ranked=ranked, topk=s.topk, draft_tokens=s.draft_tokens)
        files |= {f"{name}/{path}": data for path, data in parts.items()}
    if report_html is not None:
        files["report.html"] = report_html.encode()
    manifest = {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}
    files["MANIFEST.json"] = canonical_json({"tool_version": decision.tool_version, "sha256": manifest}).encode()
    return dict(sorted(files.items()))


def make_bundle(
    inputs: TradeoffInputs, size: int, consumers: Sequence[str] = CONSUMERS, *, created: str, decided_by: str = "",
    hashes: dict[str, str] | None = None, with_report: bool = True, previous: Decision | None = None,
) -> dict[str, bytes]:
    """Decide on ``size`` and bundle it; what the app's download and ``eagle3 export`` both call."""
    decision = decide(inputs, size, created=created, decided_by=decided_by, hashes=hashes, previous=previous)
    return bundle_of(decision, consumers, inputs=inputs if with_report else None)


def bundle_of(
    decision: Decision, consumers: Sequence[str] = CONSUMERS, *, inputs: TradeoffInputs | None = None
) -> dict[str, bytes]:
    """Bundle a decision already made; with its inputs (``restore_inputs``) the report is in it as well."""
    report = None
    if inputs is not None:
        from eagle3_core.report.data import report_data
        from eagle3_core.report.html import render_html

        report = render_html(report_data(inputs, decision))
    return bundle_files(decision, target_of(decision), consumers, report_html=report)


def zip_bytes(files: dict[str, bytes], root: str) -> bytes:
    """A zip whose bytes depend on its content alone: fixed dates, sorted names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data in sorted(files.items()):
            info = zipfile.ZipInfo(f"{root}/{path}", _ZIP_DATE)
            info.external_attr = (0o755 if path.endswith(".sh") else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()


def bundle_name(decision_target: str, size: int) -> str:
    safe = "".join(ch if ch.isalnum() or ch in ".-_" else "-" for ch in decision_target)[:80] or "target"
    return f"{safe}-d{size}"


def write_bundle(files: dict[str, bytes], out: str | Path, *, root: str, force: bool = False) -> None:
    """A zip where ``out`` ends in .zip, else a folder, written beside and renamed.

    Raises Eagle3Error when it exists and ``force`` is off, or cannot be written.
    """
    out = Path(out)
    if out.suffix == ".zip":
        write_bytes(out, zip_bytes(files, root), force=force)
        return
    if out.exists() and not force:
        raise Eagle3Error("already exists", where=out, fix="pass --force to replace it")
    if out.exists() and not (out.is_dir() and _is_bundle(out)):
        raise Eagle3Error("is not an export of ours", where=out, fix="choose another --out: it is not replaced")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name[:60]}.", dir=out.parent))
    except OSError as error:
        raise Eagle3Error("cannot be written", where=out, found=error.strerror) from None
    try:
        for path, data in files.items():
            file = temporary / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o755 if path.endswith(".sh") else 0o644)
        temporary.chmod(0o755)
        _swap(temporary, out)
    except OSError as error:
        raise Eagle3Error("cannot be written", where=out, found=error.strerror) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, out: Path) -> None:
    """Put ``new`` in the place of ``out``; the old folder goes only when the new one stands."""
    if not out.exists():
        new.rename(out)
        return
    old = new.with_name(new.name + ".old")
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)


def _is_bundle(folder: Path) -> bool:
    return (folder / "MANIFEST.json").is_file() or not any(folder.iterdir())
