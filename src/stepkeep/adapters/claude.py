"""The session store for the Claude Agent SDK: `StepkeepSessionStore`. It needs `pip install stepkeep[claude]`.

```python
async with StepkeepSessionStore("sqlite:agents.db", workspace=".") as sessions:
    options = ClaudeAgentOptions(session_store=sessions, cwd=".")
```

A transcript is a session whose state has all its entries; each batch that the SDK hands over is a checkpoint.
Transcripts of subagents are sessions of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from claude_agent_sdk import fold_session_summary, project_key_for_directory

from stepkeep import api
from stepkeep.adapters.session_head import (
    Change,
    Head,
    HeadsOwner,
    detached,
    key_of,
    message_of,
    part_of,
    settled,
)
from stepkeep.api import RestoredFiles, RetentionRules, SaveOptions, SessionInfo
from stepkeep.errors import Corrupt, InvalidInput, NotFound

if TYPE_CHECKING:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

FRAMEWORK: Final = "claude"
ENTRIES: Final = "entries"


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation goes on from: `ClaudeAgentOptions(**options)` forks it there.

    `files` tells what became of the files of the workspace; None where the checkpoint has none.
    """

    options: dict[str, Any]
    files: RestoredFiles | None


class StepkeepSessionStore(HeadsOwner):
    """Transcripts of the Claude Agent SDK in a Stepkeep store, under asyncio and under trio.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. With `workspace`, a
    directory, every batch of a main transcript captures the files there, so that what was said and what was done are
    one checkpoint. A transcript keeps all its checkpoints unless `retention` says otherwise; every checkpoint has the
    whole transcript.
    """

    def __init__(
        self,
        store: api.Store | str | os.PathLike[str],
        *,
        workspace: str | os.PathLike[str] | None = None,
        retention: RetentionRules | None = None,
    ) -> None:
        super().__init__(store, retention=retention)
        self._workspace = None if workspace is None else os.fspath(workspace)

    # --- what the SDK calls

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Save a batch durably, all or nothing. Entries whose uuid is there already are left out."""
        if entries:
            await settled(self._append, key, entries)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries in the order in which they were stored, None for a key that was never written.

        Raises:
            Corrupt: the transcript is damaged. Neither an older one nor a part of it is taken instead.
        """
        state = await settled(self._heads.state, _key(key))
        return None if state is None else state[ENTRIES]

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        return [
            {"session_id": id, "mtime": info.updated_us // 1000}
            for id, info in await settled(self._sessions, project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of all sessions; no transcript is read. One that is damaged is left to `load` to tell."""
        return await settled(self._summaries, project_key)

    async def delete(self, key: SessionKey) -> None:
        """Remove a transcript with all its bytes, and those of its subagents with it."""
        await settled(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        prefix = f"{_key(key)}/"
        found = await settled(lambda: list(self._heads.sessions(prefix)))
        return sorted(info.key.removeprefix(prefix) for info in found)

    # --- beyond the SDK

    async def rewind(
        self, session_id: str, ref: str = "latest", *, project_key: str | None = None, force: bool = False
    ) -> Rewound:
        """Bring the files back to a checkpoint of a conversation, and say how to fork the conversation there.

        The conversation that is left stays as it is, and a safety checkpoint has the files as they were. `ref` is what
        `stepkeep timeline` shows: `step-3` is the end of the third turn. The project is that of the workspace unless
        it is given.

        Raises:
            NotFound: there is no such checkpoint, or the transcript does not have its entries any more
                (`not_in_transcript`).
            Conflict: files changed since the newest capture (`files_changed`): use `force`.
        """
        return await settled(self._rewind, session_id, ref, project_key, force)

    # --- the same on a thread

    def _append(self, key: SessionKey, entries: Sequence[SessionStoreEntry]) -> None:
        batch = detached(list(entries))

        def work(head: Head) -> Change | None:
            before = [] if head.state is None else head.state[ENTRIES]
            new = _not_in(before, batch)
            if not new:
                return None
            return Change({ENTRIES: [*before, *new]}, self._described(key, head, new))

        self._heads.change(_key(key), work, project=key["project_key"])

    def _described(self, key: SessionKey, head: Head, new: list[Any]) -> SaveOptions:
        """How a batch is saved: a main transcript has a summary, turns that are counted, and files."""
        if key.get("subpath"):
            return SaveOptions()
        before = head.details or {"summary": {}, "turns": 0}
        prompts = [text for text in map(_prompt, new) if text]
        turns = before["turns"] + len(prompts)
        summary = fold_session_summary(
            {"session_id": key["session_id"], "mtime": 0, "data": before["summary"]}, key, new
        )
        return SaveOptions(
            step=turns,
            message=message_of(prompts[-1]) if prompts else "",
            details={"summary": summary["data"], "turns": turns},
            workspace=self._workspace,
        )

    def _sessions(self, project_key: str) -> list[tuple[str, SessionInfo]]:
        """The main transcripts of a project by their ids."""
        prefix = f"{key_of(FRAMEWORK, project_key)}/"
        found = ((info.key.removeprefix(prefix), info) for info in self._heads.sessions(prefix))
        return [(part_of(rest), info) for rest, info in found if "/" not in rest]

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        found: list[SessionSummaryEntry] = []
        for id, info in self._sessions(project_key):
            with suppress(Corrupt):
                details = self._heads.details(info.key)
                if details is not None:
                    mtime = info.updated_us // 1000
                    found.append({"session_id": id, "mtime": mtime, "data": details["summary"]})
        return found

    def _delete(self, key: SessionKey) -> None:
        if not key.get("subpath"):
            for info in list(self.store.sessions(prefix=f"{_key(key)}/")):
                self._heads.remove(info.key)
        self._heads.remove(_key(key))

    def _rewind(self, session_id: str, ref: str, project_key: str | None, force: bool) -> Rewound:
        project_key = project_key_for_directory(self._workspace) if project_key is None else project_key
        key = key_of(FRAMEWORK, project_key, session_id)
        session = self.store.get(key)
        entry = _last_uuid(session.load(ref).state[ENTRIES])
        newest = self._heads.read(key)
        if newest is None or entry not in {each.get("uuid") for each in newest.state[ENTRIES]}:
            raise NotFound(
                f"the transcript of {session_id} has no entry {entry} any more: `stepkeep restore {key} {ref}` first",
                code="not_in_transcript",
                session=key,
            )
        options = {
            "session_store": self,
            "resume": session_id,
            "fork_session": True,
            "resume_session_at": entry,
        }
        if self._workspace is None:
            return Rewound(options=options, files=None)
        restored = session.files.restore(ref, workspace=self._workspace, force=force)
        return Rewound(options=options | {"cwd": self._workspace}, files=restored)


def _key(key: SessionKey | SessionListSubkeysKey) -> str:
    """The key of a transcript's session. The slashes of a subpath stay: it comes last."""
    main = key_of(FRAMEWORK, key["project_key"], key["session_id"])
    subpath = key.get("subpath")
    return f"{main}/{subpath}" if subpath else main


def _not_in(before: list[Any], batch: list[Any]) -> list[Any]:
    """The entries of a batch that are not stored yet. The uuid tells; an entry without one is always new."""
    known = {entry.get("uuid") for entry in before}
    new = []
    for entry in batch:
        uuid = entry.get("uuid")
        if uuid is None or uuid not in known:
            new.append(entry)
            known.add(uuid)
    return new


def _prompt(entry: dict[str, Any]) -> str:
    """The text of an entry that begins a turn; empty for all others."""
    message = entry.get("message")
    if entry.get("type") != "user" or not isinstance(message, dict):
        return ""
    if any(entry.get(mark) for mark in ("isMeta", "isCompactSummary", "isSidechain")):
        return ""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = [block for block in content or () if isinstance(block, dict)]
    if any(block.get("type") == "tool_result" for block in blocks):
        return ""
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")


def _last_uuid(entries: list[Any]) -> str:
    for entry in reversed(entries):
        if entry.get("uuid") and not entry.get("isSidechain"):
            return str(entry["uuid"])
    raise InvalidInput("the transcript has no entry with a uuid to go on from", code="nothing_to_fork")
