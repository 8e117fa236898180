"""Who gets in: the token of an address once, then the cookie, from pages of this server only, by its own name."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import pytest

import stepkeep
from stepkeep.guarded_server import listen
from stepkeep.web.answers import ANSWERS
from tests.web.driving import Ui

Serve = Callable[..., Ui]


@pytest.fixture
def ui(serve: Serve, tmp_path: Path) -> Ui:
    url = f"sqlite:{tmp_path / 'store.db'}"
    with stepkeep.open(url) as store:
        store.session("s").save({"n": 1})
    return serve(url)


class Caller:
    """Requests with any headers, as no browser sends them."""

    def __init__(self, ui: Ui) -> None:
        self.place = urlsplit(ui.address)
        assert self.place.hostname == "127.0.0.1"

    def __call__(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port or 0, timeout=20)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body, headers=given)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def cookie(self) -> str:
        status, headers, _ = self(f"/?{self.place.query}")
        assert status == 200
        assert "httponly" in headers["set-cookie"].lower()
        assert "samesite=strict" in headers["set-cookie"].lower()
        return headers["set-cookie"].partition(";")[0]


def test_an_address_works_once(ui: Ui) -> None:
    """The token of the printed address opens the pages once; without it, or with another one, nobody gets in."""
    call = Caller(ui)
    assert call("/")[0] == 401
    assert call("/?token=wrong")[0] == 401
    assert call(f"/?{call.place.query}", method="HEAD")[0] in (401, 405)
    cookie = call.cookie()
    assert call(f"/?{call.place.query}")[0] == 401
    assert call("/", Cookie=cookie)[0] == 200
    assert call("/api/sessions", Cookie=cookie)[0] == 200
    assert call("/api/sessions", Cookie=cookie + "x")[0] == 401
    assert call("/api/sessions")[0] == 401
    assert call("/api/changes")[0] == 401
    assert call("/static/app.js")[0] == 401


def test_foreign_names_and_pages_are_refused(ui: Ui) -> None:
    """Another Host is 421, another Origin or site 403, also that of another port here; the token stays unused."""
    call = Caller(ui)
    assert call(f"/?{call.place.query}", Host="evil.example")[0] == 421
    cookie = call.cookie()

    def status(**headers: str) -> int:
        return call("/api/sessions", Cookie=cookie, **headers)[0]

    own = f"127.0.0.1:{call.place.port}"
    assert status(Host="evil.example") == 421
    assert status(Host=f"127.0.0.1.evil.example:{call.place.port}") == 421
    assert status(Host="127.0.0.1:1") == 421
    assert status(Origin="https://evil.example") == 403
    assert status(Origin="null") == 403
    assert status(Origin="http://127.0.0.1:1") == 403
    assert status(Sec_Fetch_Site="cross-site") == 403
    assert status(Sec_Fetch_Site="same-site") == 403
    assert status(Sec_Fetch_Site="same-origin", Origin=f"http://{own}") == 200
    assert status(Sec_Fetch_Site="none") == 200


def test_every_answer_is_kept_to_this_page(ui: Ui) -> None:
    """Answers are stored nowhere, shown in no frame, taken for nothing else; the page runs only its own modules."""
    call = Caller(ui)
    cookie = call.cookie()
    for path in ("/", "/api/sessions", "/static/style.css", "/api/nothing", "/download/state?key=s", "/none"):
        _, headers, _ = call(path, Cookie=cookie)
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
    policy = call("/", Cookie=cookie)[1]["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    download = call("/download/state?key=s", Cookie=cookie)[1]
    assert download["content-type"] == "application/octet-stream"
    assert download["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    "path", ["../server.py", "..%2fserver.py", "/etc/passwd", "vendor/../../page.py", "", "%00"]
)
def test_no_path_of_a_request_reaches_the_disk(ui: Ui, path: str) -> None:
    """Only the files of the pages are there, whatever is asked for."""
    call = Caller(ui)
    assert call(f"/static/{path}", Cookie=call.cookie())[0] == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/outline?key=s&path=a%5B", 400),
        ("/api/outline?key=s&start=-1", 400),
        ("/api/outline?key=nobody", 404),
        ("/api/outline?key=s&ref=seq:9", 404),
        ("/api/outline?key=s&body=none", 404),
        ("/api/checkpoint", 400),
        ("/api/sessions?limit=x", 400),
        ("/api/sessions?after=x", 400),
        ("/api/timeline?key=s&page=9", 400),
        ("/api/timeline?key=s&branch=none", 404),
        ("/api/find?key=s", 400),
        ("/api/file?key=s&ref=latest&path=../../etc/passwd", 404),
        ("/api/none", 404),
        ("/download/none?key=s", 404),
    ],
)
def test_bad_questions_have_answers(ui: Ui, path: str, status: int) -> None:
    """A question that makes no sense is an error with a code, and the server goes on."""
    call = Caller(ui)
    found, _, body = call(path, Cookie=call.cookie())
    assert found == status
    assert json.loads(body)["error"]["code"]


def test_changes_need_leave_and_a_page_of_this_server(serve: Serve, tmp_path: Path) -> None:
    """Nothing changes without --allow-changes, by GET, by a form, or with a body that is no request."""
    url = f"sqlite:{tmp_path / 'store.db'}"
    with stepkeep.open(url) as store:
        store.session("s").save({"n": 1})
    body = json.dumps({"key": "s", "message": "x"}).encode()
    own = {"Content_Type": "application/json", "X_Stepkeep": "1"}
    call = Caller(serve(url))
    status, _, answer = call("/api/do/create", "POST", body, Cookie=call.cookie(), **own)
    assert (status, json.loads(answer)["error"]["code"]) == (403, "changes_not_allowed")
    call = Caller(serve(url, "--allow-changes"))
    cookie = call.cookie()

    def act(body: bytes = body, method: str = "POST", name: str = "create", **headers: str) -> int:
        return call(f"/api/do/{name}", method, body, Cookie=cookie, **headers)[0]

    assert act(Content_Type="application/x-www-form-urlencoded") == 403
    assert act(Content_Type="application/json") == 403
    assert act(method="GET", **own) == 405
    assert act(Origin="http://evil.example", **own) == 403
    assert act(b"{", **own) == 400
    assert act(b'{"key": "s", "path": "/etc"}', **own) == 400
    assert act(b'{"key": "s", "message": "' + b"x" * 300_000 + b'"}', **own) == 413
    assert act(name="none", **own) == 404
    with stepkeep.open(url) as store:
        assert store.get("s").info.last_seq == 1
    assert act(**own) == 200
    with stepkeep.open(url) as store:
        assert store.get("s").info.last_seq == 2


def test_looking_changes_nothing(ui: Ui, tmp_path: Path) -> None:
    """No question that pages can ask writes anything: not even the one that looks the store over."""
    call = Caller(ui)
    cookie = call.cookie()
    call("/api/session?key=s", Cookie=cookie)
    before = contents(tmp_path / "store.db")
    for name in ANSWERS:
        query = "key=s&ref=latest&path=n&older=seq:1&newer=seq:1&text=x&step=x"
        status = call(f"/api/{name}?{query}", Cookie=cookie)[0]
        assert (name, status < 500) == (name, True)
    assert contents(tmp_path / "store.db") == before


def contents(path: Path) -> list[str]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = [repr((name, list(connection.execute(f"SELECT * FROM {name}")))) for name in sorted(tables)]
    connection.close()
    return found


def test_a_port_that_is_taken_is_said(ui: Ui, serve: Serve, tmp_path: Path) -> None:
    """A second server on the same port does not start, and says why."""
    from tests import interpreter

    port = str(urlsplit(ui.address).port)
    done = interpreter.stepkeep(
        "ui", "--no-open", "--port", port, "--store", f"sqlite:{tmp_path / 'store.db'}"
    )
    assert done.returncode == 1
    assert "cannot listen" in done.stderr


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Connections send at once: else the body of each answer waits until its headers were acknowledged."""
    with listen("127.0.0.1", 0) as listening:
        client = socket.create_connection(listening.getsockname())
        connection, _ = listening.accept()
        with client, connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_large_state_takes_less_than_twice_its_size(serve: Serve, tmp_path: Path) -> None:
    """Opening the root of a state, and a value far inside it, needs less than twice the state at any moment."""
    url = f"sqlite:{tmp_path / 'store.db'}"
    with stepkeep.open(url) as store:
        words = [{"text": random.Random(number).randbytes(2000).hex()} for number in range(16_000)]
        size = store.session("s").save({"words": words, "note": "x"}).size_bytes
    ui = serve(url)
    call = Caller(ui)
    cookie = call.cookie()
    assert call("/api/session?key=s", Cookie=cookie)[0] == 200
    before = peak_bytes(ui)
    for path in ("/api/outline?key=s", "/api/outline?key=s&path=words%5B15000%5D"):
        status, _, body = call(path, Cookie=cookie)
        assert (status, len(body) < 100_000) == (200, True)
    assert size > 64_000_000
    assert peak_bytes(ui) - before < 2 * size


def peak_bytes(ui: Ui) -> int:
    """The most memory that a server had so far."""
    status = Path(f"/proc/{ui.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
