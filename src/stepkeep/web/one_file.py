"""The pages of a session in one file that opens without a server: the same modules, and the answers written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from stepkeep import api
from stepkeep.errors import StepkeepError
from stepkeep.model import DETAILS, FILES, STATE
from stepkeep.web.answers import ANSWERS, Opened, Params
from stepkeep.web.page import file_page

MAX_BYTES: Final = 32 * 1024 * 1024
"""How much the answers in a file take at most; the newest checkpoints are in it first."""

_CONTAINERS: Final = frozenset({"dict", "list", "tuple", "set", "frozenset"})


class HtmlExported(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the pages of a session. `checkpoints` counts those whose contents are in it, `left_out` the others:
    of these only what the timeline says."""

    session: str
    output: str
    size_bytes: int
    checkpoints: int
    left_out: int


def export_html(
    store: api.Store,
    key: str,
    output: Path,
    *,
    force: bool = False,
    with_states: bool = True,
    max_bytes: int = MAX_BYTES,
) -> HtmlExported:
    """Write the pages of a session to a file: whole or not at all, durable, readable only by its owner, and over an
    existing file only with `force`.

    Raises:
        NotFound: there is no such session. InvalidInput: the file exists.
        BackendUnavailable: it cannot be written.
    """
    recording = _Recording(store, key, max_bytes)
    recording.add_session()
    ids = [header.id for header in store.get(key).history()]
    held = sum(1 for id in ids if recording.add_checkpoint(id)) if with_states else 0
    start = f"#/s/{quote(key, safe='')}"
    content = file_page(f"{key} · Stepkeep", recording.document(start)).encode()
    api.write_file(output, content, force=force)
    return HtmlExported(
        session=key, output=str(output), size_bytes=len(content), checkpoints=held, left_out=len(ids) - held
    )


class _Recording:
    """Answers by question, as long as there is room for them."""

    def __init__(self, store: api.Store, key: str, max_bytes: int) -> None:
        self._opened = Opened(store)
        self._key = key
        self._left = max_bytes
        self._answers: dict[str, msgspec.Raw] = {}

    def document(self, start: str) -> str:
        """All answers as JSON."""
        return msgspec.json.encode({"start": start, "answers": self._answers}).decode()

    def add_session(self) -> None:
        """What the pages of the session itself ask for."""
        for name in ("session", "events", "plan"):
            self._add(name)
        run = self._add("run")
        for step in () if run is None else run.steps:
            for stream in ("", "stderr") if run.kind == "workflow" else ("",):
                self._add("output", step=step.id, stream=stream)
        for fold in ("1", ""):
            page, at = self._add("timeline", fold=fold), 1
            while page is not None and at * len(page.drawn) < page.rows:
                self._add("timeline", fold=fold, page=str(at))
                at += 1

    def add_checkpoint(self, id: str) -> bool:
        """What the page of a checkpoint asks for, and the one that compares it with its parent; False without room.

        One that is damaged is in the file as that.
        """
        if self._left <= 0:
            return False
        found = self._add("checkpoint", ref=id)
        if found is None:
            return False
        for body in found.contents:
            if body in (STATE, DETAILS):
                self._add_tree(id, "" if body == STATE else body)
        self._add("conversation", ref=id)
        self._add("events", ref=id)
        if FILES in found.contents:
            self._add_files(id)
        if found.parents:
            self._add_difference(found.parents[0], id)
        return self._left > 0

    def _add_difference(self, older: str, newer: str) -> None:
        """What changed in the state, and in each of the files where both have some."""
        sides = self._add("diff", older=older, newer=newer)
        if sides is None or not all(FILES in side.contents for side in (sides.older, sides.newer)):
            return
        files = self._add("files_diff", older=older, newer=newer)
        for change in () if files is None else files.changes:
            self._add("files_diff", older=older, newer=newer, path=change.path)

    def _add_files(self, id: str) -> None:
        """The list of the project files, and their texts."""
        listed = self._add("files", ref=id)
        for file in () if listed is None else listed.files:
            self._add("file", ref=id, path=file.path)

    def _add_tree(self, id: str, body: str) -> None:
        """Every level of a body. What is larger than a page of values is in the file with its first page."""
        waiting: list[str] = [""]
        while waiting and self._left > 0:
            path = waiting.pop()
            found = self._add("outline", ref=id, body=body, path=path)
            if found is not None:
                deeper = (each for each in found.entries if each.kind in _CONTAINERS or not each.is_whole)
                waiting += [each.path for each in deeper if each.path]

    def _add(self, name: str, **params: str) -> Any:
        """Record one answer, and return it; None for an error, which is recorded too, and where there is no room."""
        given = {key: value for key, value in {"key": self._key, **params}.items() if value}
        try:
            value = ANSWERS[name](self._opened, Params(given))
            content = api.to_json(value)
        except StepkeepError as exc:
            error = {"code": exc.code, "message": exc.message}
            value, content = None, msgspec.json.encode({"$error": error})
        if len(content) > self._left:
            self._left = 0
            return None
        self._left -= len(content)
        self._answers["\n".join([name, *_sorted(given)])] = msgspec.Raw(content)
        return value


def _sorted(given: dict[str, str]) -> Iterator[str]:
    """The parameters as the pages write them, in the order of the texts."""
    # As JavaScript sorts: by UTF-16 code units.
    texts = (f"{name}={value}" for name, value in given.items())
    return iter(sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass")))
