"""Readable files: a save beside the least that a durable file can cost, and what keeping the history adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import stepkeep
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import percentile, say, seconds_of
from benchmarks.workloads import near
from stepkeep import config
from stepkeep.codec.readable import Layout
from stepkeep.storage.files.document_writer import DocumentWriter
from stepkeep.storage.files.durable_files import Fingerprint, OpenFolder
from stepkeep.storage.files.layouts import safe_name

SIZE_BYTES: Final = 20_000
SAMPLES: Final = 300
BARE: Final = "bare file"
WITHOUT: Final = "workflow, without history"


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001
    """Saves of 20 KB, taking turns: each layout, a bare file with the bytes that were stored, and without history."""
    say("readable files")
    times = _measure(directory, 20 if quick else SAMPLES)
    bare = median(times[BARE])
    lines = [
        (
            what,
            f"{median(taken) * 1e3:.2f}",
            f"{percentile(taken, 95) * 1e3:.2f}",
            f"{median(taken) / bare:.2f}",
        )
        for what, taken in times.items()
    ]
    added = median(times[Layout.WORKFLOW]) / median(times[WITHOUT])
    return Part(
        tables=[
            Table("Readable files, 20 KB (milliseconds)", ("what", "median", "95 %", "÷ bare file"), lines)
        ],
        rows=[Row("files, workflow: save with history ÷ without", added, 1.10)],
    )


def _measure(directory: Path, samples: int) -> dict[str, list[float]]:
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    times: dict[str, list[float]] = {name: [] for name in (BARE, *Layout, WITHOUT)}
    with ExitStack() as stack:
        sessions: dict[str, stepkeep.Session] = {}
        for name in (*Layout, WITHOUT):
            layout = Layout.WORKFLOW if name == WITHOUT else name
            folder = directory / name.replace(", ", "-").replace(" ", "-")
            store = stack.enter_context(stepkeep.open(f"files:{folder}?layout={layout}", config=settings))
            sessions[name] = store.session(name, profile="archive")
        stack.enter_context(_no_history_of(WITHOUT))
        latest = directory / "run" / "checkpoints" / "run" / "latest.json"
        for scene in near(SIZE_BYTES, samples):
            for name, session in sessions.items():
                times[name].append(seconds_of(lambda session=session: session.save(scene.state)))  # type: ignore[misc]  # noqa: B023
            times[BARE].append(seconds_of(_bare_save(directory, latest.read_bytes())))
    return times


def _bare_save(directory: Path, content: bytes) -> Callable[[], None]:
    """Temporary file, fsync, rename, fsync of the folder: what any durable file needs."""

    def save() -> None:
        temporary = directory / "bare.tmp"
        with temporary.open("wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        temporary.rename(directory / "bare.json")
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    return save


@contextmanager
def _no_history_of(key: str) -> Iterator[None]:
    """Let the saves of one session overwrite `checkpoint.json` and keep nothing else, as without a history."""
    archive: Any = DocumentWriter._archive
    name = safe_name(key)

    def archived(self: DocumentWriter, folder: OpenFolder, found: Fingerprint) -> str | None:
        return None if folder.location.endswith(name) else str(archive(self, folder, found))

    DocumentWriter._archive = archived  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DocumentWriter._archive = archive  # type: ignore[method-assign]
