"""How commands print: tables that never cut a number, JSON that never holds NaN."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 0) -> None:
    """Right-aligned but for the first ``left`` columns; a narrow terminal scrolls rather than cuts figures."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    width = console.measure(table, options=console.options.update(width=1000)).maximum
    Console(width=max(console.width, width)).print(table)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float, float], None]]:
    """Yield ``advance(done, total)``; drawn on stderr, with the time left, and gone when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
