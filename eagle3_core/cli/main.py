"""``eagle3``: one command per job. Each module here reads options, calls the core, prints."""

from __future__ import annotations

import importlib
import sys

import typer

from eagle3_core import __version__
from eagle3_core.errors import Eagle3Error

COMMANDS = (
    "app", "params", "count", "merge", "coverage", "measure", "tradeoff", "export", "report", "check", "audit",
    "extract", "train", "experiment", "demo", "inspect", "convert", "runs",
)
"""Modules of this package, in the order ``--help`` lists them; each has ``register(app)``."""

INTERRUPTED = 130

app = typer.Typer(
    name="eagle3", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Choose an EAGLE-3 draft vocabulary on your own tokens and your own machine.",
)


def _version(value: bool) -> None:
    if value:
        print(f"eagle3 {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True,
                                       help="Print the version.")) -> None:
    pass


for _name in COMMANDS:
    importlib.import_module(f"eagle3_core.cli.{_name}").register(app)


def run() -> None:
    """Console entry: bad input gives one line on stderr and exit code 2, never a traceback."""
    try:
        app()
    except Eagle3Error as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except SystemExit as ending:
        # typer answers Ctrl-C itself, with an empty line and this code.
        if ending.code == INTERRUPTED:
            print("interrupted", file=sys.stderr)
        raise


if __name__ == "__main__":
    run()
