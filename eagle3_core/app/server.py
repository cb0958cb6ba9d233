"""``eagle3 app``: all notebooks behind one server, each under a clean path, with a first paint.

The page that marimo sends is empty until its scripts have started, seconds
later. We put the report's own markup and pictures into it, so the answer is
readable at once; the live page removes them when it is ready.
"""

from __future__ import annotations

import html
import ipaddress
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from eagle3_core.app.sources import DATA_VARIABLE
from eagle3_core.errors import Eagle3Error
from eagle3_core.resources import apps_folder

PAGES = {"choose": "choose_vocab.py", "inspect": "inspect_checkpoint.py", "runs": "training_runs.py"}
COOKIE = "eagle3_token"
TOKEN_VARIABLE = "EAGLE3_TOKEN"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def free_port(host: str, wanted: int, tries: int = 50) -> int:
    """``wanted``, or the next port that is free. Raises Eagle3Error when none is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(wanted, min(wanted + tries, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise Eagle3Error("no free port", found=f"{wanted} to {wanted + tries - 1} are taken", fix="choose one with --port")


def access_token(host: str, token_file: Path | None) -> str | None:
    """The token that requests must carry; None on loopback without one. Raises Eagle3Error off loopback without one."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Eagle3Error("--token-file cannot be read", where=token_file, found=error) from None
    if token and len(token) < 8:
        raise Eagle3Error("the access token is too short", found=f"{len(token)} characters", expected="at least 8")
    if not token and not is_loopback(host):
        raise Eagle3Error(f"--host {host} is reachable from other machines and needs an access token",
                          expected=f"--token-file FILE, or {TOKEN_VARIABLE} in the environment")
    return token or None


def build_app(token: str | None = None):
    """The ASGI application: pages that exist, the token gate, the first paint."""
    import marimo
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Mount, Route

    folder = apps_folder()
    present = {name: folder / file for name, file in PAGES.items() if (folder / file).is_file()}
    os.environ["EAGLE3_SERVED"] = ",".join(present)
    os.environ.setdefault("MARIMO_SKIP_UPDATE_CHECK", "1")
    builder = marimo.create_asgi_app(quiet=True, include_code=False)
    for name, file in present.items():
        builder = builder.with_app(path=f"/{name}", root=str(file))
    inner = builder.build()

    async def home(_: Request) -> Response:
        return RedirectResponse("/choose/")

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    middleware = [Middleware(FirstPaint)]
    if token is not None:
        middleware.insert(0, Middleware(TokenGate, token=token))
    return Starlette(routes=[Route("/", home), Route("/health", health), Mount("/", inner)], middleware=middleware)


class TokenGate:
    """Every request, websockets too, carries the token as a cookie; the login page sets it."""

    def __init__(self, app, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = Request({**scope, "type": "http", "method": scope.get("method", "GET")}, receive)
        given = request.cookies.get(COOKIE, "")
        if secrets.compare_digest(given.encode(), self.token.encode()):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401})
            return
        await (await self._login(request))(scope, receive, send)

    async def _login(self, request: Request) -> Response:
        note = ""
        if request.method == "POST" and request.url.path == "/login":
            body = (await request.body())[:4096].decode("utf-8", "replace")
            entered = dict(parse_qsl(body)).get("token", "")
            if secrets.compare_digest(entered.encode(), self.token.encode()):
                response = RedirectResponse("/choose/", status_code=303)
                response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
                return response
            note = "<p role='alert'>That is not the token.</p>"
        page = (
            "<!doctype html><html lang='en'><meta name='viewport' content='width=device-width'><title>eagle3</title>"
            "<body style='font:16px system-ui;max-width:24rem;margin:4rem auto;padding:0 1rem'>"
            "<h1 style='font-size:20px'>EAGLE-3 draft vocabulary</h1>" + note +
            "<form method='post' action='/login'><label>Access token<br><input type='password' name='token' autofocus "
            "style='font:inherit;width:100%'></label><p><button style='font:inherit'>Open</button></p></form>"
        )
        return HTMLResponse(page, status_code=401, headers={"Cache-Control": "no-store"})


class FirstPaint(BaseHTTPMiddleware):
    """Put the explorer's markup into the page of the main app."""

    async def dispatch(self, request: Request, call_next) -> Response:
        response = await call_next(request)
        kind = response.headers.get("content-type", "")
        if request.method != "GET" or request.url.path != "/choose/" or "text/html" not in kind:
            return response
        body = b"".join([chunk async for chunk in response.body_iterator])  # type: ignore[attr-defined]
        query = dict(request.query_params)
        page = body.decode("utf-8").replace("</body>", first_paint_block(query) + "</body>", 1)
        headers = {k: v for k, v in response.headers.items() if k.lower() not in ("content-length", "etag")}
        return HTMLResponse(page, status_code=response.status_code, headers=headers)


def first_paint_block(query: dict[str, str]) -> str:
    """The cover that shows the answer while the live page starts; empty when the state cannot be computed."""
    from eagle3_core.app.screen import first_paint
    from eagle3_core.app.sources import catalogue
    from eagle3_core.app.state import parse_query
    from eagle3_core.report.html import web_file

    state, _ = parse_query(query)
    try:
        markup = first_paint(state, catalogue())
    except Eagle3Error:
        # The live page shows what is wrong with the link; there is nothing to paint before it.
        return ""
    style = web_file("explorer.css") + web_file("first_paint.css")
    return (f'<div id="first-paint" class="e3" inert><style>{style}</style><div class="fp-side"></div>'
            f'<div class="fp-main"><p class="fp-title">EAGLE-3 draft vocabulary</p>{markup}</div></div>')


def warm_up() -> None:
    """Compute the opening screen and the script bundle before the first visitor asks."""
    from eagle3_core.app.widget import script

    first_paint_block({})
    script()


def serve(host: str, port: int, folders: Sequence[Path], token_file: Path | None) -> None:
    """Serve until interrupted. Prints the address once the server answers."""
    import uvicorn

    for folder in folders:
        if not folder.is_dir():
            raise Eagle3Error("--data is not a folder", where=folder)
    token = access_token(host, token_file)
    os.environ[DATA_VARIABLE] = os.pathsep.join(str(folder.resolve()) for folder in folders)
    chosen = free_port(host, port)
    application = build_app(token)
    shown = f"[{host}]" if ":" in host else host

    class Server(uvicorn.Server):
        async def startup(self, sockets=None) -> None:
            await super().startup(sockets)
            gate = "; open it and enter the access token" if token else ""
            print(f"serving on http://{html.escape(shown)}:{chosen}{gate}  (Ctrl-C stops it)", flush=True)

    config = uvicorn.Config(application, host=host, port=chosen, log_level="warning", timeout_graceful_shutdown=2,
                            ws_max_size=MAX_MESSAGE)
    import threading

    threading.Thread(target=warm_up, daemon=True).start()
    Server(config).run()


MAX_MESSAGE = 320 << 20
"""A 200 MB upload travels as base64."""
