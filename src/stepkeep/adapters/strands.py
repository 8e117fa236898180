"""Storage for Strands Agents: `StepkeepStorage`. It needs `pip install stepkeep[strands]`.

```python
sessions = SnapshotSessionManager(session_id="chat-7", storage=StepkeepStorage("sqlite:agents.db"))
agent = Agent(model=model, session_manager=sessions)
```

It understands the keys of snapshots: those of one agent are checkpoints of one session, each time that the latest is
overwritten too. So history is history, and what did not change is not stored again. Every other key is a session of its
own. Bytes come back as they were given; those of JSON are the state as they are, and can be read as what they say.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from typing import Any, Final, ParamSpec, Self, TypeVar

from strands.storage import Storage
from strands.storage.storage import _NAMESPACED, _normalize_key, _normalize_prefix
from strands.types.exceptions import StorageError

from stepkeep import api
from stepkeep.adapters.session_head import HeadsOwner, settled
from stepkeep.api import Header, RetentionRules, SaveOptions
from stepkeep.api.extension import JSON, HeaderQuery, Loaded, Verbatim, decode
from stepkeep.errors import NotFound, StepkeepError
from stepkeep.model import STATE

FRAMEWORK: Final = "strands"
OTHER: Final = "strands-key"
LATEST: Final = "latest"
IMMUTABLE: Final = "immutable"
_SNAPSHOT: Final = re.compile(
    r"(?P<scope>.+)/snapshots/(?:snapshot_latest|immutable_history/snapshot_(?P<id>[\w-]+))\.json"
)
_DATA: Final = "data"
_DELETED: Final = "deleted"

P = ParamSpec("P")
R = TypeVar("R")


class StepkeepStorage(HeadsOwner, Storage):  # type: ignore[misc]
    """Bytes under keys in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. `retention` says which
    snapshots stay, all of them without it: `{"keep_last": 50, "keep_tags": ["immutable"]}` keeps those that are
    immutable.
    """

    _namespaced: object = None

    def __init__(
        self, store: api.Store | str | os.PathLike[str], *, retention: RetentionRules | None = None
    ) -> None:
        super().__init__(store, retention=retention)
        self._deleting = threading.Lock()
        self._prefix = ""
        self._last: tuple[bytes, Any] = (b"", {_DATA: b""})

    async def write(self, key: str, data: bytes) -> None:
        """Store data durably under a key. A snapshot that is overwritten stays in the history of its agent."""
        await _told(self._write, self._prefix + _normalize_key(key), bytes(data))

    async def read(self, key: str) -> bytes | None:
        """The data under a key, None if there is none.

        Raises:
            StorageError: it is damaged. Neither an older snapshot nor None is returned instead.
        """
        return await _told(self._read, self._prefix + _normalize_key(key))

    async def delete(self, key: str) -> None:
        """Remove what is under a key. With the last snapshot of an agent its history goes too, with all bytes."""
        await _told(self._delete, self._prefix + _normalize_key(key))

    async def list(self, query: str = "") -> builtins.list[str]:
        """All keys that begin so, sorted."""
        keys = await _told(self._list, self._prefix + _normalize_prefix(query))
        return [key.removeprefix(self._prefix) for key in keys]

    def namespace(self, prefix: str) -> Self:
        """The same storage with a prefix before all keys."""
        scoped = copy(self)
        scoped._prefix += _normalize_prefix(f"{prefix}/")
        scoped._namespaced = _NAMESPACED
        return scoped

    # --- the same on a thread

    def _write(self, key: str, data: bytes) -> None:
        last, state = self._last
        if last != data:
            state = _state(data)
            self._last = data, state  # an immutable snapshot is followed by the same as the latest
        session, kind, id = _place(key)
        options = SaveOptions(tags=(kind,), external_id=id, message=id or "")
        self._heads.replace(session, state, options, lambda: self._remove(session, id))

    def _read(self, key: str) -> bytes | None:
        engine, (session, kind, id) = self.store.engine, _place(key)
        info = engine.session_with(session) if kind == LATEST else None
        head = (
            None if info is None else engine.head(info.uid)
        )  # mostly it is the latest, and one read brings it
        if head is not None and LATEST in head.header.tags and _DELETED not in head.header.metadata:
            return _data(head)
        header = self._find(session, kind, id)
        return None if header is None else _data(engine.load(header))

    def _find(self, key: str, kind: str, id: str | None = None) -> Header | None:
        """The checkpoint for a key, None if there is none or it is deleted.

        The latest is that of the current branch: a restored agent goes on from there.
        """
        try:
            session = self.store.get(key)
            if kind == IMMUTABLE:
                found = self._heads.headers(
                    HeaderQuery(session=session.uid, tag=kind, external_id=id, limit=1)
                )
                return found[0] if found else None
            header = session.header("latest")
            header = header if LATEST in header.tags else session.header(f"tag:{LATEST}")
        except NotFound:
            return None
        return None if _DELETED in header.metadata else header

    def _delete(self, key: str) -> None:
        session, kind, id = _place(key)
        with self._deleting, suppress(NotFound):
            if kind == IMMUTABLE:
                self._remove(session, id)
            elif kind == LATEST and self._find(session, LATEST) and self._find(session, IMMUTABLE):
                self._heads.save(session, {}, SaveOptions(tags=(LATEST,), metadata={_DELETED: True}))
            elif kind == LATEST:
                self.store.get(session).clear()
            if not (self._find(session, LATEST) or self._find(session, IMMUTABLE)):
                self.store.get(session).clear()

    def _remove(self, key: str, id: str | None) -> None:
        session = self.store.get(key)
        for header in self._heads.headers(HeaderQuery(session=session.uid, tag=IMMUTABLE, external_id=id)):
            session.delete(header.id)

    def _list(self, prefix: str) -> builtins.list[str]:
        return sorted({key for key in self._keys(prefix) if key.startswith(prefix)})

    def _keys(self, prefix: str) -> Iterator[str]:
        """The keys that may begin so."""
        other = f"{OTHER}:"
        for info in self._heads.sessions(other + prefix):
            yield info.key.removeprefix(other)
        scope = prefix.partition("/snapshots")[0]
        for info in self._heads.sessions(f"{FRAMEWORK}:{scope}"):
            folder = f"{info.key.removeprefix(f'{FRAMEWORK}:')}/snapshots"
            if self._find(info.key, LATEST) is not None:
                yield f"{folder}/snapshot_latest.json"
            for header in self._heads.headers(HeaderQuery(session=info.uid, tag=IMMUTABLE)):
                yield f"{folder}/immutable_history/snapshot_{header.external_id}.json"


async def _told(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run work on a thread; its errors are those of the framework."""
    try:
        return await settled(work, *args, **kwargs)
    except StepkeepError as exc:
        raise StorageError(str(exc)) from exc


def _place(key: str) -> tuple[str, str, str | None]:
    """The session of a key, what kind of checkpoint it is there, and its id."""
    found = _SNAPSHOT.fullmatch(key)
    if found is None:
        return f"{OTHER}:{key}", LATEST, None
    session, id = f"{FRAMEWORK}:{found['scope']}", found["id"]
    return session, LATEST if id is None else IMMUTABLE, id


def _state(data: bytes) -> Any:
    """What is saved for some data: JSON as it is, so that it can be read as what it says, other bytes as bytes."""
    if data.startswith(b"{"):
        with suppress(StepkeepError):
            decode(JSON, data)
            return Verbatim(data)
        with suppress(ValueError, RecursionError):  # Strands writes NaN too, which is no JSON
            value = json.loads(data)
            if _dumped(value) == data:
                return value
    return {_DATA: data}


def _data(found: Loaded) -> bytes:
    """The data of a checkpoint; of a state that someone else saved its JSON."""
    content = found.header.contents[STATE]
    if content.encoding == JSON:
        return found.json() if content.first_at else found.contents[STATE]
    value = found.value()
    return value[_DATA] if type(value.get(_DATA)) is bytes else _dumped(value)


def _dumped(value: Any) -> bytes:
    """JSON as Strands writes it."""
    return json.dumps(value, ensure_ascii=False).encode()
