"""A store with a bit of everything, and what can be read from a store."""

from __future__ import annotations

from typing import Any

from stepkeep.api import Store
from stepkeep.engine import Save
from stepkeep.engine.engine import NewBody
from stepkeep.model import Branch
from stepkeep.storage.port import HeaderQuery


def fill(store: Store) -> None:
    """Branches, annotations that came early and late, events, blobs, details, pruned gaps, a finished session."""
    run = store.session("mixed", profile="archive", project="p", metadata={"owner": "tests"})
    for number in range(30):
        run.save(_state(number), step=number, tags=["even"] if number % 2 == 0 else [])
    fork = run.header("step-20")
    store.engine.backend.set_branch(
        run.uid, Branch(name="side", created_us=fork.time_us, head=fork.id, fork=fork.id), expect_head=None
    )
    for number in range(5):
        run.save(_state(100 + number), branch="side", external_id=f"e{number}", details={"why": (1, 2)})
    backend = store.engine.backend
    backend.annotate(run.uid, ("side", "e1"), "note", "late", b"late", time_us=1)
    backend.annotate(run.uid, ("side", "to-come"), "note", "early", b"early", time_us=2)
    blob = store.engine.make_blob(b"a long output " * 500)
    body = NewBody(b'{"output":1}', "json", frozenset({blob.digest}))
    store.engine.save(Save(session=run.uid, state=body, blobs=(blob,), message="with a blob"))
    run.prune(keep_last=12)
    done = store.session("finished", profile="agent")
    done.save({"when": 1.5, "raw": b"\x00\xff"}, status="failed", message="it broke")
    done.fail("it broke")
    store.session("empty")


def _state(number: int) -> dict[str, Any]:
    return {"n": number, "log": [f"line {line} says the same words again" for line in range(number)]}


def contents(store: Store) -> dict[str, Any]:
    """Everything a reader can see of a store, by session."""
    backend = store.engine.backend
    return {
        info.key: {
            "session": info,
            "branches": backend.branches(info.uid),
            "events": backend.events(info.uid),
            "annotations": sorted(backend.annotations(info.uid), key=lambda note: (note.kind, note.name)),
            "checkpoints": [
                (row.raw, _bodies(store, row.id)) for row in backend.headers(HeaderQuery(session=info.uid))
            ],
            "blobs": sorted({blob for body in backend.bodies(info.uid) for blob in body.blobs}),
        }
        for info in store.sessions()
    }


def _bodies(store: Store, id: str) -> dict[str, bytes]:
    checkpoint = store.checkpoint(id)
    return {name: checkpoint.content(name) for name in checkpoint.header.contents}
