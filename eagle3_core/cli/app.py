"""``eagle3 app``: serve the apps and print where."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from eagle3_core.errors import Eagle3Error

TRIED = 50


def register(app: typer.Typer) -> None:
    @app.command("app")
    def serve(
        host: Annotated[str, typer.Option("--host", help="Address; any but loopback needs a token.")] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The next free one if taken.")] = 2718,
        data: Annotated[list[Path] | None, typer.Option("--data", help="Folder of artifacts; repeat it.")] = None,
        token_file: Annotated[Path | None, typer.Option("--token-file", help="File with the token.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
    ) -> None:
        """Serve the apps: choose a vocabulary, inspect a checkpoint, watch training runs."""
        folders = [checked_folder(folder) for folder in data or []]
        os.environ["EAGLE3_DATA"] = os.pathsep.join(str(folder) for folder in folders)
        token = read_token(token_file)
        sock = free_socket(host, port)
        import uvicorn

        from eagle3_core.app.asgi import Settings, create_app, is_loopback

        server = create_app(Settings(host=host, token=None if is_loopback(host) and token_file is None else token))
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{sock.getsockname()[1]}/"
        if as_json:
            import json

            print(json.dumps({"url": address}), flush=True)
        else:
            print(f"serving on {address}", flush=True)
            if not is_loopback(host):
                print("open to the network: visitors are asked for the token", flush=True)
            print("stop with Ctrl-C", file=sys.stderr, flush=True)
        server.warm()
        config = uvicorn.Config(server, log_level="warning", access_log=False, ws_max_size=64 << 20,
                                timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[sock])


def checked_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise Eagle3Error("is not a folder", where=f"--data {folder}")
    return folder.resolve()


def read_token(token_file: Path | None) -> str | None:
    """From the file, else the environment; never from the command line, which other users can read."""
    if token_file is None:
        return os.environ.get("EAGLE3_TOKEN") or None
    from eagle3_core.files import read_bytes

    token = read_bytes(token_file, limit=4096).decode("utf-8", "replace").strip()
    if len(token) < 8:
        raise Eagle3Error("token", where=token_file, found=f"{len(token)} characters", expected="at least 8")
    return token


def free_socket(host: str, port: int) -> socket.socket:
    """Bound and listening, so that the printed address already answers. Raises Eagle3Error when none is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Eagle3Error("no such address", where=f"--host {host}", found=error.strerror) from None
    last: OSError | None = None
    for candidate in range(port, min(port + TRIED, 65536) if port else 1):
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address[0], candidate, *address[2:]))
            sock.listen(128)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise Eagle3Error("no free port", where=f"--port {port}", found=last.strerror if last else None,
                      expected=f"one of {port} to {port + TRIED - 1}")
