"""The one exception family. The CLI and the apps render it; nobody else catches it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Eagle3Error(Exception):
    """Bad input, told in one line: where, what, found, expected, how to mend it.

    ``str(error)`` never contains a line break or control character, so that a
    hostile file name or token cannot forge a second line.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        found: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> None:
        self.what, self.where, self.found, self.expected, self.fix = what, where, found, expected, fix
        super().__init__(what)

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where is not None else self.what]
        if self.found is not None:
            parts.append(f"found {self.found}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        line = ", ".join(parts)
        if self.fix:
            line += f" ({self.fix})"
        return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in line)


def suggest(name: str, known: Iterable[str]) -> str | None:
    """``did you mean ...`` for the nearest known name, or None when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None
