"""`stepkeep ui`: the pages and their answers over HTTP, for the person who has the address that the command printed."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from stepkeep import api
from stepkeep.access import LOOPBACK, Guard, Refusal
from stepkeep.errors import (
    BackendUnavailable,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    StepkeepError,
)
from stepkeep.fixes import fixes_for
from stepkeep.guarded_server import (
    GuardedApp,
    Message,
    Receive,
    Send,
    address_of,
    header_of,
    listen,
    refuse,
    serve,
    with_headers,
)
from stepkeep.model import STATE
from stepkeep.secrets import url_without_password
from stepkeep.web.actions import ACTIONS, read_request
from stepkeep.web.answers import ANSWERS, Opened, Params
from stepkeep.web.page import ICON, TYPES, served_page, static_files

log = logging.getLogger("stepkeep")

COOKIE: Final = "stepkeep"
CHANGE_HEADER: Final = "X-Stepkeep"
"""What a request to change something has, and no form of a foreign page can send."""

MAX_BODY_BYTES: Final = 256 * 1024
WATCH_SECONDS: Final = 0.5
WATCHED: Final = 50
"""How many sessions, those used last, are looked at for changes."""

JSON: Final = "application/json"
_STATUSES: Final = (
    (InvalidInput, 400),
    (NotFound, 404),
    (Conflict, 409),
    (Corrupt, 422),
    (BackendUnavailable, 503),
)


class Pages:
    """The application: the document, its files, the answers and the actions on one store."""

    def __init__(self, opened: Opened, *, allows_changes: bool) -> None:
        self._opened = opened
        self._allows_changes = allows_changes
        store = api.store_option(url_without_password(opened.store.url, mark=""))
        self._document, self._policy = served_page({"allows_changes": allows_changes, "store": store})
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name:path}", self._static),
                Route("/api/changes", self._changes),
                Route("/api/{name}", self._answer),
                Route("/api/do/{name}", self._act, methods=["POST"]),
                Route("/download/{body}", self._download),
            ]
        )

    async def _page(self, _request: Request) -> Response:
        return HTMLResponse(self._document, headers={"Content-Security-Policy": self._policy})

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = static_files().get(name)
        if content is None:
            return _refused(Refusal(404, "not_found", "no such file"))
        return Response(content, media_type=TYPES[PurePosixPath(name).suffix])

    async def _answer(self, request: Request) -> Response:
        answer = ANSWERS.get(request.path_params["name"])
        if answer is None:
            return _refused(Refusal(404, "not_found", "no such page"))
        gone = threading.Event()
        params = Params(request.query_params, is_gone=gone.is_set)
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, request, gone)
            response = await _called(lambda: answer(self._opened, params), params.maybe("key"))
            group.cancel_scope.cancel()
        return response

    async def _act(self, request: Request) -> Response:
        action = ACTIONS.get(request.path_params["name"])
        refused = self._refusal(request)
        if refused is not None:
            return _refused(refused)
        if action is None:
            return _refused(Refusal(404, "not_found", "there is no such action"))
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return _refused(Refusal(413, "invalid_query", "the body is too long"))
        return await _called(lambda: action(self._opened.store, read_request(bytes(body))), None)

    def _refusal(self, request: Request) -> Refusal | None:
        if not self._allows_changes:
            return Refusal(
                403, "changes_not_allowed", "start the server with --allow-changes to change something"
            )
        if request.headers.get("Content-Type") != JSON or request.headers.get(CHANGE_HEADER) != "1":
            return Refusal(403, "foreign_origin", "changes are requested by the pages of this server only")
        return None

    async def _download(self, request: Request) -> Response:
        body, params = request.path_params["body"], Params(request.query_params)
        try:
            checkpoint = await anyio.to_thread.run_sync(lambda: self._opened.checkpoint(params))
            if body not in checkpoint.header.contents:
                raise NotFound(f"{checkpoint.id} has no {body}", code="body_not_found")
        except StepkeepError as exc:
            return _error(exc, params.maybe("key"))
        suffix = "json" if checkpoint.header.contents[body].encoding.startswith("json") else "bin"
        name = quote(f"{checkpoint.id}.{'' if body == STATE else body + '.'}{suffix}")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(checkpoint.content(body), media_type="application/octet-stream", headers=headers)

    async def _changes(self, request: Request) -> Response:
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        """Which sessions changed, as it happens. Looking costs one short read of the sessions used last."""
        known: dict[str, tuple[str, object]] | None = None
        while not await request.is_disconnected():
            try:
                now = await anyio.to_thread.run_sync(self._look)
            except StepkeepError as exc:
                known = None
                yield _event({"error": exc.code})
            else:
                keys = sorted({found[0] for uid, found in now.items() if (known or {}).get(uid) != found})
                if known is None or keys:
                    yield _event({"sessions": [] if known is None else keys})
                known = now
            await anyio.sleep(WATCH_SECONDS)

    def _look(self) -> dict[str, tuple[str, object]]:
        found = self._opened.store.sessions(limit=WATCHED)
        return {info.uid: (info.key, (info.version, info.last_seq, info.updated_us)) for info in found}


async def _watch(request: Request, gone: threading.Event) -> None:
    """Notice that the one who asked is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


async def _called(call: Callable[[], object], key: str | None) -> Response:
    """What the api returns about a session, or its error; calls are made on threads."""
    try:
        return _json(await anyio.to_thread.run_sync(lambda: api.to_json(call())))
    except StepkeepError as exc:
        return _error(exc, key)


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status_code=status, media_type=JSON)


def _error(error: StepkeepError, key: str | None) -> Response:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 501)
    names = ("code", "message", "retryable", "checkpoint", "path")
    fields = {name: getattr(error, name) for name in names} | {"fixes": fixes_for(error, session=key)}
    return _json(msgspec.json.encode({"error": fields}), status)


def _refused(refusal: Refusal) -> Response:
    error = {"code": refusal.code, "message": refusal.message}
    return _json(msgspec.json.encode({"error": error}), refusal.status)


# --- getting in ------------------------------------------------------------------------------------------------


class Entrance:
    """Lets a browser in that has an address with a token, once each: it gets a cookie, and the guard looks at that."""

    def __init__(self, app: GuardedApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard
        self._tokens: set[str] = set()

    def new_address(self, base: str) -> str:
        """An address that opens the pages once."""
        token = secrets.token_urlsafe(32)
        self._tokens.add(token)
        return f"{base}/?token={token}"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/" or b"token=" not in scope["query_string"]:
            await self._app(scope, receive, send)
            return
        refused = self._guard.foreign_host(header_of(scope))
        if refused is None and not self._is_taken(scope):
            refused = Refusal(
                401,
                "token_needed",
                "This address was used already, or is not one of this server: each works once. "
                "Start `stepkeep ui` again for a new one.",
            )
        if refused is not None:
            await refuse(refused, send, as_text=True)
            return
        # A page of our own leads on: after a redirect from elsewhere the browser would keep a strict cookie back.
        response = HTMLResponse(
            '<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>Stepkeep</title>'
            f'<link rel="icon" href="{ICON}">'
        )
        response.set_cookie(
            self._guard.cookie or COOKIE, self._guard.token, httponly=True, samesite="strict", path="/"
        )
        await response(scope, receive, with_headers(send))

    def _is_taken(self, scope: Message) -> bool:
        """Whether the request has a token that nobody used; from here on it is used."""
        given = Request(scope).query_params.get("token", "")
        if scope["method"] != "GET" or given not in self._tokens:
            return False
        self._tokens.discard(given)
        return True


def serve_ui(
    store: api.Store,
    *,
    host: str = LOOPBACK[0],
    port: int = 0,
    allows_changes: bool = False,
    ready: Callable[[Callable[[], str]], None],
) -> None:
    """Serve the pages of a store until interrupted.

    `ready` gets, once connections are accepted, a function that gives an address; each opens the pages once.

    Raises:
        BackendUnavailable: the address cannot be listened on (`address_in_use`).
    """
    listening = listen(host, port)
    try:
        base, bound = address_of(host, listening)
        # Cookies know no ports: with the port in its name, several servers on one host do not disturb each other.
        guard = Guard(
            token=secrets.token_urlsafe(32), names={*LOOPBACK, host}, port=bound, cookie=f"{COOKIE}_{bound}"
        )
        pages = Pages(Opened(store), allows_changes=allows_changes)
        entrance = Entrance(GuardedApp(pages.app, guard), guard)
        ready(lambda: entrance.new_address(base))
        with suppress(KeyboardInterrupt):
            serve(entrance, listening, grace_seconds=1)
    finally:
        listening.close()
