"""``eagle3 app``: serve the apps on this machine."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    @app.command(name="app")
    def serve_app(
        host: str = typer.Option("127.0.0.1", "--host", help="Address to bind; off loopback a token is required."),
        port: int = typer.Option(8300, "--port", min=1, max=65535, help="The next free one is taken if in use."),
        data: list[Path] = typer.Option([], "--data", help="Folder with your artifacts; repeat it."),
        token_file: Path | None = typer.Option(None, "--token-file", help="File with the access token."),
    ) -> None:
        """Serve the interactive app and print its address."""
        from eagle3_core.app.server import serve

        serve(host, port, data, token_file)
