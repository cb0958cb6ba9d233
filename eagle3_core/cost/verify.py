"""``--verify``: the target's own forward on 1 and on K + 1 tokens, where its weights are here."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from eagle3_core.cost.device import pick_device, synchronize
from eagle3_core.cost.profile import TargetPoint, Timing
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import reason

if TYPE_CHECKING:
    import torch

TOKENS = (1, 2, 3, 4, 5, 6, 8)
"""New tokens a pass: plain decoding, and verify passes of K = 1 to 7."""
CONTEXT_SHARES = (1.5, 1.3, 1.1, 0.9, 0.7, 0.5)


def load_target(path: str | Path, dtype: str, device: str = "auto") -> Any:
    """A causal language model from a folder or a GGUF file, dequantised. Never runs code that comes with it."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = Path(path)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "local_files_only": True, "trust_remote_code": False}
    try:
        if path.suffix == ".gguf":
            from transformers import GgufConfig

            # Packed GGUF weights decode several times slower than dequantised ones on a CPU.
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True), **options)
        else:
            model = AutoModelForCausalLM.from_pretrained(path, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise Eagle3Error("holds no target that transformers can load", where=path,
                          found=reason(error)) from None
    return cast("torch.nn.Module", model.eval()).to(pick_device(device))


def measure_target(
    model: Any, *, context: int, batch: int = 1, tokens: Sequence[int] = TOKENS, seconds: float = 60.0,
    progress: Callable[[float, float], None] | None = None,
) -> list[TargetPoint]:
    """Times of a forward over new tokens, in turns so that drift hits all alike.

    Cached contexts run from 0.5 to 1.5 times ``context``, with a fresh cache for
    every descent, because a pass of few tokens was seen to take 180 or 230 ms on
    one CPU by where its buffers lay. A text decodes through many such states, so a
    repeat is the mean over one descent, and the median is taken over those.
    """
    import torch
    from transformers import DynamicCache

    device = next(model.parameters()).device
    vocab = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> torch.Tensor:
        return torch.randint(0, vocab, (batch, length), generator=generator).to(device)

    inputs = {count: draw(count) for count in tokens}
    contexts = sorted({max(1, round(context * share)) for share in CONTEXT_SHARES}, reverse=True)
    repeats: list[dict[int, float]] = []
    began = time.perf_counter()
    with torch.inference_mode(), warnings.catch_warnings():
        # Releases before 5.24 know the cache only by the name that later ones deprecate.
        warnings.simplefilter("ignore", FutureWarning)
        while time.perf_counter() - began < seconds or len(repeats) < 4:
            cache = DynamicCache(config=model.config)
            model(draw(contexts[0]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            spent = dict.fromkeys(tokens, 0.0)
            for longer, held in zip([contexts[0], *contexts], contexts, strict=False):
                if longer > held:
                    cache.crop(held - longer)
                for count in tokens:
                    synchronize(device)
                    start = time.perf_counter()
                    model(inputs[count], past_key_values=cache, use_cache=True)
                    synchronize(device)
                    spent[count] += (time.perf_counter() - start) * 1e3 / len(contexts)
                    cache.crop(-count)
            repeats.append(spent)
            if progress is not None:
                progress(min(seconds, time.perf_counter() - began), seconds)
    return [_point(count, batch, np.array([spent[count] for spent in repeats[1:]])) for count in tokens]


def _point(count: int, batch: int, times: np.ndarray) -> TargetPoint:
    low, q25, median, q75, high = np.quantile(times, [0.05, 0.25, 0.5, 0.75, 0.95])
    outliers = int((np.abs(times - median) > 3 * max(q75 - q25, 1e-9)).sum())
    return TargetPoint(tokens=count, batch=batch, timing=Timing(
        median_ms=float(median), q05_ms=float(low), q95_ms=float(high), repeats=len(times), outliers=outliers))
