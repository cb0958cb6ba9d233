"""Tiny models for these tests, importable as ``drafter_tiny``; one thread, since tiny products gain from none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

if "drafter_tiny" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("drafter_tiny", Path(__file__).parents[1] / "drafter" / "tiny.py")
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["drafter_tiny"] = _module
    _spec.loader.exec_module(_module)

torch.set_num_threads(1)
