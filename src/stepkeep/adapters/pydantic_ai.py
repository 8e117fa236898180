"""Conversations of Pydantic AI: `StepkeepConversationStore`. It needs `pip install stepkeep[pydantic-ai]`.

```python
store = StepkeepConversationStore("sqlite:agents.db")
conversation = await store.load("chat-7") or Conversation(conversation_id="chat-7")
await store.save(await agent.run("Hello", conversation=conversation))
```

A conversation is a session whose state has its entries, those of branches that it left too, and whose details have the
record. A fork has its own copy of what it shares, so conversations are removed each for itself. The tags of a
checkpoint are the entries that it added: they are the index by which an entry is found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

from stepkeep import api
from stepkeep.adapters.session_head import Change, Head, HeadsOwner, detached, key_of, message_of, settled
from stepkeep.api import RetentionRules, SaveOptions
from stepkeep.api.extension import HeaderQuery
from stepkeep.errors import NotFound
from stepkeep.model import MAX_TAGS

FRAMEWORK: Final = "pydantic-ai"
ENTRIES: Final = "entries"
RECORD: Final = "record"
MAX_HOMES: Final = 10_000
"""Of how many entries it is remembered in which conversation they are."""

_entry: Final = TypeAdapter(ConversationEntry)
_record: Final = TypeAdapter(ConversationRecord)


class StepkeepConversationStore(HeadsOwner, ConversationStore):  # type: ignore[misc]
    """Conversations of Pydantic AI in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. The scope of a
    conversation is the project of its session. Every checkpoint has the whole conversation; `retention` says how many
    stay. Deleting a conversation removes all its bytes.
    """

    def __init__(
        self, store: api.Store | str | os.PathLike[str], *, retention: RetentionRules | None = None
    ) -> None:
        super().__init__(store, retention=retention)
        self._homes: dict[str, str] = {}

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation, None if there is none; its messages are not read.

        Raises:
            Corrupt: it is damaged.
        """
        return await settled(self._record_of, key_of(FRAMEWORK, conversation_id))

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """The records of a scope, or all, last saved first."""
        return await settled(self._records_of, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries as one checkpoint.

        Raises:
            ConversationConflict: the stored revision is another one, or the head of the record is nowhere.
        """
        await settled(self._write, record, list(new_entries), expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Remove a conversation with all its bytes; what a fork took over is the fork's.

        Raises:
            ConversationConflict: the stored revision is another one.
        """
        await settled(self._delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """The entry with that id, or `LookupError`."""
        return _entry.validate_python((await settled(self._line, entry_id))[-1])

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to one, oldest first, or the last of them: one conversation is read.

        Raises:
            Corrupt: it is damaged.
        """
        line = [] if head_id is None else await settled(self._line, head_id)
        wanted = line if limit is None else line[max(0, len(line) - limit) :]
        return [_entry.validate_python(entry) for entry in wanted]

    # --- the same on a thread

    def _record_of(self, key: str) -> ConversationRecord | None:
        details = self._heads.details(key)
        if details is None or details[RECORD] is None:
            return None
        record: ConversationRecord = _record.validate_python(details[RECORD])
        for tip in (record.head_id, *record.branches):
            self._remember(tip, key)
        return record

    def _records_of(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        found: list[ConversationRecord] = []
        for info in self.store.sessions(project=scope or None, prefix=f"{FRAMEWORK}:"):
            if limit is not None and len(found) >= limit:
                break
            record = self._record_of(info.key)
            if record is not None and (scope is None or record.scope == scope):
                found.append(record)
        return sorted(found, key=lambda record: record.updated_at, reverse=True)

    def _write(
        self, record: ConversationRecord, entries: list[ConversationEntry], expected: str | None
    ) -> None:
        key = key_of(FRAMEWORK, record.conversation_id)
        new = detached([_entry.dump_python(entry, mode="json") for entry in entries])
        details = {RECORD: detached(_record.dump_python(record, mode="json"))}
        tags = [entry.id for entry in entries][-MAX_TAGS:]

        def work(head: Head) -> Change:
            if _revision(head) != expected:
                raise ConversationConflict(record.conversation_id)
            known = [*(head.state or {ENTRIES: []})[ENTRIES], *new]
            if record.head_id is not None and all(entry["id"] != record.head_id for entry in known):
                known = [*self._taken_over(record), *known]
            options = SaveOptions(details=details, tags=tags, step=len(known), message=_message(new))
            return Change({ENTRIES: known}, options)

        self._clear_deleted(key)
        self._heads.change(key, work, project=record.scope or None)
        for tip in (record.head_id, *record.branches):
            self._remember(tip, key)

    def _taken_over(self, record: ConversationRecord) -> list[Any]:
        """A copy of the history that a fork begins with."""
        assert record.head_id is not None
        try:
            return self._line(record.head_id)
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None

    def _delete(self, conversation: str, expected: str) -> None:
        key = key_of(FRAMEWORK, conversation)

        def work(head: Head) -> Change:
            if _revision(head) != expected:
                raise ConversationConflict(conversation)
            return Change({ENTRIES: []}, SaveOptions(details={RECORD: None}, message="deleted"))

        try:
            session = self.store.get(key)  # this one, not one that is begun under the same id meanwhile
        except NotFound:
            raise ConversationConflict(conversation) from None
        self._heads.change(key, work)
        with suppress(NotFound):
            session.clear()

    def _clear_deleted(self, key: str) -> None:
        """Finish a deletion that was interrupted, so that a new conversation can have the id."""
        with suppress(NotFound):
            session = self.store.get(key)
            details = self._heads.details(key)
            if details is not None and details[RECORD] is None:
                session.clear()

    # --- where an entry is

    def _line(self, entry_id: str) -> list[Any]:
        """The stored entries from the first up to one."""
        for key in self._keys_of(entry_id):
            found = self._heads.read(key)
            known = {} if found is None else {entry["id"]: entry for entry in found.state[ENTRIES]}
            if entry_id in known:
                self._remember(entry_id, key)
                line: list[Any] = []
                next_id: str | None = entry_id
                while next_id is not None:
                    line.append(known[next_id])
                    next_id = known[next_id]["parent_id"]
                return line[::-1]
        raise NotFound(f"no conversation has an entry {entry_id}", code="entry_not_found")

    def _keys_of(self, entry_id: str) -> Iterator[str]:
        """The conversations that may have an entry: the one it was last seen in, those that added it, then all."""
        if (home := self._homes.get(entry_id)) is not None:
            yield home
        engine = self.store.engine
        for header in engine.headers(HeaderQuery(tag=entry_id)):
            with suppress(NotFound):
                key = engine.backend.session(header.session).key
                if key.startswith(f"{FRAMEWORK}:"):
                    yield key
        for info in self._heads.sessions(f"{FRAMEWORK}:"):
            yield info.key

    def _remember(self, entry_id: str | None, key: str) -> None:
        if entry_id is not None:
            if len(self._homes) >= MAX_HOMES:
                self._homes.clear()
            self._homes[entry_id] = key


def _revision(head: Head) -> str | None:
    record = None if head.details is None else head.details[RECORD]
    return None if record is None else record["revision"]


def _message(entries: list[Any]) -> str:
    """What the user said in new entries, for the timeline."""
    parts = (part for entry in entries for part in entry["message"].get("parts", ()))
    said = [part["content"] for part in parts if part.get("part_kind") == "user-prompt"]
    return message_of(said[-1]) if said and isinstance(said[-1], str) else ""
