"""Choosing an EAGLE-3 draft vocabulary: coverage, cost, acceptance, decision.

Imports run downwards only: apps -> cli -> (report, export) -> decide ->
(acceptance, cost, vocab) -> (corpus, specs). ``training`` and ``drafter`` sit
beside ``acceptance``. Torch is imported only inside the functions that need
tensors, so that opening the app never waits for it.
"""

__version__ = "0.1.0"
