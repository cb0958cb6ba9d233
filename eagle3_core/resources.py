"""Where the shipped apps and samples lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _PACKAGE.parent / name


def apps_folder() -> Path:
    return _folder("apps")


def samples_folder() -> Path:
    return _folder("data_samples")
