"""Who may come in, and what serving the app costs."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from eagle3_core.app.state import EXAMPLES, AppState, parse_query, to_query
from tests.apps.conftest import start_server


def fetch(
    url: str, headers: dict[str, str] | None = None, data: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers or {}, data=data)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {k.lower(): v for k, v in error.headers.items()}


def test_torch_is_not_imported_to_serve_or_to_run_the_notebook():
    code = (
        "import sys\n"
        "from eagle3_core.app.asgi import create_app\n"
        "create_app()\n"
        "from eagle3_core.resources import apps_folder\n"
        "import importlib.util\n"
        "spec = importlib.util.spec_from_file_location('choose_vocab', apps_folder() / 'choose_vocab.py')\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.app.run()\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_off_loopback_a_token_is_required(tmp_path: Path):
    done = subprocess.run([sys.executable, "-m", "eagle3_core.cli.main", "app", "--host", "0.0.0.0", "--port", "0"],
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "token is required" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_token_admits_by_cookie_and_by_header_only(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("correct horse battery\n")
    server = start_server(tmp_path, "--token-file", str(token))
    try:
        assert fetch(f"{server.url}/choose/")[0] == 401
        assert fetch(f"{server.url}/choose/?token=correct+horse+battery")[0] == 401
        assert fetch(f"{server.url}/login", data=b"token=wrong")[0] == 401
        status, body, _ = fetch(f"{server.url}/choose/", {"Authorization": "Bearer correct horse battery"})
        assert status == 200
        assert b"Recommended D" in body
        status, body, _ = fetch(f"{server.url}/choose/", {"Accept": "text/html"})
        assert status == 401
        assert b"Token needed" in body
    finally:
        server.stop()


def test_names_other_than_loopback_and_other_sites_are_refused(server):
    assert fetch(f"{server.url}/choose/", {"Host": "evil.example"})[0] == 403
    assert fetch(f"{server.url}/choose/api/kernel/run", {"Origin": "http://evil.example"}, b"{}")[0] == 403
    status, _, headers = fetch(f"{server.url}/choose/")
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]


def test_no_path_of_the_server_is_in_the_page(server):
    body = fetch(f"{server.url}/choose/?latency=../../../etc/passwd&counts=/etc/passwd")[1].decode()
    for private in (str(Path.home()), str(server.data), str(Path(__file__).parents[2])):
        assert private not in body


def test_taken_port_gives_the_next_one(server, tmp_path: Path):
    port = int(server.url.rsplit(":", 1)[1])
    second = start_server(tmp_path, port=port)
    try:
        assert int(second.url.rsplit(":", 1)[1]) > port
    finally:
        second.stop()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_state_survives_its_query(name):
    state = EXAMPLES[name]
    from urllib.parse import parse_qsl

    assert parse_query(dict(parse_qsl(to_query(state)))) == (state, ())


@pytest.mark.parametrize(("key", "value"), [
    ("k", "0"), ("k", "five"), ("d", "1e3"), ("alpha", "nan"), ("alpha", "2"), ("dtype", "int4"), ("target", "\x00"),
    ("decode_tps", "inf"), ("target", "x" * 500),
])
def test_a_bad_value_becomes_the_default_and_a_notice(key, value):
    state, notices = parse_query({key: value})
    assert state == AppState()
    assert len(notices) == 1
    assert key in notices[0]
