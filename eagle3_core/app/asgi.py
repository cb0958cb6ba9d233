"""The server of all apps: clean paths, one navigation, a first paint, and the rules of who may come in.

Notebooks run in marimo's ASGI app; this wraps it. On the loopback address the Host
header must be a loopback name, so that no web page can reach the server through a
name of its own (DNS rebinding). Elsewhere a token is required, kept in a cookie
that holds only its digest. Cross-site posts and sockets are refused, and a content
security policy keeps every request on this host.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import logging
import mimetypes
import os
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from eagle3_core.app import pages
from eagle3_core.app.inspect_page import ANY_PATH
from eagle3_core.app.screen import chart_of, first_svg, screen_of
from eagle3_core.app.sources import catalogue
from eagle3_core.app.state import EXAMPLES, parse_query
from eagle3_core.app.vega import cached_bundle
from eagle3_core.app.widget import SERVED
from eagle3_core.errors import Eagle3Error
from eagle3_core.resources import apps_folder

log = logging.getLogger("eagle3.app")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
COOKIE = "eagle3_access"
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; "
    "style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "frame-src 'self' blob: data:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)


@dataclass(frozen=True)
class Settings:
    """``token`` None means loopback only."""

    host: str = "127.0.0.1"
    token: str | None = None


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def create_app(settings: Settings = Settings()) -> AppServer:
    """Raises Eagle3Error when the address is open to others and there is no token."""
    if not is_loopback(settings.host) and not settings.token:
        raise Eagle3Error("a token is required off loopback", where=f"--host {settings.host}",
                          fix="pass --token-file, or set EAGLE3_TOKEN")
    os.environ[SERVED] = "1"
    # Paths of this machine are for those who sit at it.
    os.environ[ANY_PATH] = "1" if is_loopback(settings.host) and not settings.token else ""
    os.environ.setdefault("MARIMO_SKIP_UPDATE_CHECK", "1")
    import marimo

    builder = marimo.create_asgi_app(quiet=True, include_code=False)
    available = []
    for path, (_, notebook) in pages.PAGES.items():
        file = apps_folder() / notebook
        if file.is_file():
            builder = builder.with_app(path=path, root=str(file))
            available.append(path)
    return AppServer(builder.build(), settings, tuple(available))


class AppServer:
    """ASGI application. ``warm`` makes the first page of each example in the background."""

    def __init__(self, inner: Any, settings: Settings, available: tuple[str, ...]) -> None:
        self.inner, self.settings, self.available = inner, settings, available
        version = importlib.metadata.version("vl-convert-python")
        self._vega_url = f"/static/vega-{version}.js"
        self._assets = _Assets()
        self._cookie = hmac.new((settings.token or "").encode(), b"eagle3 access", hashlib.sha256).hexdigest()

    def warm(self) -> threading.Thread:
        def run() -> None:
            try:
                cached_bundle()
                for state in EXAMPLES.values():
                    first_svg(state, catalogue())
            except Eagle3Error as error:
                log.warning("first page not prepared: %s", error)

        thread = threading.Thread(target=run, name="eagle3-warm", daemon=True)
        thread.start()
        return thread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, refusal)
            return
        if scope["type"] == "websocket":
            await self.inner(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await self._own(request)
        if response is None and scope["path"].rstrip("/") in self.available and request.method == "GET":
            if not scope["path"].endswith("/"):
                query = f"?{request.url.query}" if request.url.query else ""
                response = RedirectResponse(scope["path"] + "/" + query)
            else:
                response = await self._page(scope, receive, request)
        if response is not None:
            _protect(response)
            await response(scope, receive, send)
            return
        await self.inner(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get("host", "")
        if not self.settings.token and not is_loopback(_host_name(host)):
            return PlainTextResponse("this server answers on the loopback address only\n", 403)
        origin = headers.get("origin")
        unsafe = scope["type"] == "websocket" or scope.get("method") not in ("GET", "HEAD")
        if unsafe and origin and urlsplit(origin).netloc != host:
            return PlainTextResponse("request from another site\n", 403)
        if self.settings.token and scope["path"] != "/login" and not self._admitted(headers):
            target = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
            wants_page = "text/html" in headers.get("accept", "")
            return HTMLResponse(pages.login_markup(target, False), 401) if wants_page else PlainTextResponse(
                "token needed\n", 401)
        return None

    def _admitted(self, headers: dict[str, str]) -> bool:
        token = self.settings.token or ""
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if bearer and hmac.compare_digest(bearer.encode(), token.encode()):
            return True
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE and hmac.compare_digest(value.encode(), self._cookie.encode()):
                return True
        return False

    async def _own(self, request: Request) -> Response | None:
        """Pages of the server itself, or None."""
        path = request.url.path
        if path == "/":
            return RedirectResponse("/choose/" + (f"?{request.url.query}" if request.url.query else ""))
        if path == "/healthz":
            return PlainTextResponse("ok\n")
        if path == self._vega_url:
            return Response(await run_in_threadpool(cached_bundle), media_type="text/javascript", headers=FOREVER)
        for page in self.available:
            if path.startswith(f"{page}/assets/"):
                return await self._assets.get(path.removeprefix(f"{page}/assets/"))
        if path == "/login" and self.settings.token:
            if request.method != "POST":
                return HTMLResponse(pages.login_markup("/", False), 401)
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > 1 << 16:
                    return PlainTextResponse("too long\n", 413)
            form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
            given, target = form.get("token", [""])[0], form.get("next", ["/"])[0]
            if not hmac.compare_digest(given.encode(), self.settings.token.encode()):
                return HTMLResponse(pages.login_markup(target, True), 401)
            safe = target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"
            response = RedirectResponse(safe, 303)
            response.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict", path="/")
            return response
        return None

    async def _page(self, scope: Scope, receive: Receive, request: Request) -> Response | None:
        """A notebook's page with the navigation, and for the main app with its first paint."""
        path = scope["path"].rstrip("/")
        status, body = await _fetch(self.inner, scope, receive)
        text = body.decode("utf-8", "replace")
        if status != 200 or "<body" not in text:
            return HTMLResponse(text, status)
        # marimo names the notebook and its folders by their paths; the page works without them.
        text = text.replace(f"{apps_folder()}{os.sep}", "")
        for folder in (apps_folder(), apps_folder().parent, Path.cwd(), Path.home()):
            if len(folder.parts) > 1:
                text = text.replace(str(folder), ".")
        said = "this machine only" if not self.settings.token else "open to the network, token required"
        top = pages.navigation(path, self.available, said)
        if path == "/choose":
            top += await run_in_threadpool(_first, request.url.query)
        return HTMLResponse(pages.notebook_page(text, top, self._vega_url if path == "/choose" else None),
                            headers={"Cache-Control": "no-store"})


class _Assets:
    """marimo's own scripts and styles: their names hold their hash, so a browser may keep them for good."""

    def __init__(self) -> None:
        import marimo

        self.folder = Path(marimo.__file__).parent / "_static" / "assets"
        self._names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        self._held: dict[str, bytes] = {}

    async def get(self, name: str) -> Response | None:
        """None for a name that is not there: marimo answers as it likes."""
        if name not in self._names:
            return None
        body = self._held.get(name)
        if body is None:
            body = self._held[name] = await run_in_threadpool((self.folder / name).read_bytes)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(body, media_type="text/javascript" if name.endswith(".js") else kind, headers=FOREVER)


def _first(query: str) -> str:
    state, notices = parse_query(dict(item for item in _pairs(query)))
    try:
        screen = screen_of(state, catalogue())
        svg = first_svg(state, catalogue(), wait=False)
        # Pictures that are not drawn yet come with the live page: the figures do not wait for them.
        chart = chart_of(state, catalogue()) if svg else None
        return pages.first_paint_markup(state, screen, notices, svg, chart)
    except Eagle3Error as error:
        return pages.problem_markup(str(error))
    except Exception:
        log.exception("first paint of ?%s", query[:200])
        return ""


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return [(key, values[0]) for key, values in parse_qs(query[:8192], max_num_fields=64).items()]
    except ValueError:
        return []


def _host_name(host: str) -> str:
    return host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]


def _protect(response: Response) -> None:
    response.headers.setdefault("Content-Security-Policy", POLICY)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Referrer-Policy", "same-origin")


async def _refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 4403})
        return
    await response(scope, receive, send)


async def _fetch(app: Any, scope: Scope, receive: Receive) -> tuple[int, bytes]:
    """An inner response, whole. Compression is left to the outside."""
    plain = dict(scope)
    plain["headers"] = [(k, v) for k, v in scope["headers"] if k != b"accept-encoding"]
    parts: list[bytes] = []
    status = 500

    async def collect(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(plain, receive, collect)
    return status, b"".join(parts)
