"""`holdfast demo`: a crash and damage, for real, and what is left afterwards."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from holdfast import api, config
from holdfast.cli.app import DAMAGE, Command, Settings, settings_of
from holdfast.cli.printing import is_terminal, lines, width
from holdfast.errors import HoldfastError
from holdfast.model import STATE

SESSION: Final = "research"
SAVES_BEFORE_KILL: Final = 8
MAX_ROUNDS: Final = 20
EXAMPLE: Final = "holdfast demo --keep"
WRITER: Final = "import sys; from holdfast.cli.demo import write; write(sys.argv[1])"


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. `acknowledged` saves were confirmed, `unconfirmed` was under way when the writer was killed."""

    acknowledged: int
    unconfirmed: int
    found: int
    damaged: str
    recovered: str
    store: str
    is_kept: bool


@click.command("demo", cls=Command, example=EXAMPLE)
@click.option("--keep", is_flag=True, help="Keep the store to look at it.")
@settings_of
def demo(settings: Settings, keep: bool) -> None:
    """Save, kill the writer, damage the file, and see what is left.

    Works in a temporary folder of its own. Exits with an error when anything is not as promised.
    """
    folder = tempfile.mkdtemp(prefix="holdfast-demo-")
    story = _Story(Path(folder) / "demo.db", is_told=not settings.json)
    try:
        result = story.run(keep)
    finally:
        if not keep:
            shutil.rmtree(folder)
    settings.show(result, _print_end)


def _print_end(result: DemoResult) -> None:
    place = (
        f"kept at {result.store}" if result.is_kept else f"was {result.store}, now removed (--keep keeps it)"
    )
    lines(["", "Everything was as promised.", *_wrapped(f"The store {place}")])


# --- the writer, which runs in a process of its own ------------------------------------------------------------


def state_at(step: int) -> dict[str, Any]:
    """The state at a step; both sides compute it, so that nothing has to be believed."""
    notes = [f"Source {number}: what it says about tides, in a sentence or two." for number in range(step)]
    return {"question": "Why are there two tides a day?", "step": step, "notes": notes}


def _open(url: str) -> api.Store:
    """The demo's store, which nobody's configuration prunes or limits."""
    settings = config.load(cwd=None, environ={}, flags={"profile": "archive", "keeper.enabled": False})
    return api.open(url, config=settings)


def write(url: str) -> None:
    """Save as fast as possible, for ever. Says SAVE before each and ACK after it."""
    with _open(url) as store:
        session = store.session(SESSION)
        step = 1 + max((header.step or 0 for header in session.history(limit=1)), default=0)
        while True:
            print(f"SAVE {step}", flush=True)
            session.save(state_at(step), step=step, message=f"read source {step}")
            print(f"ACK {step}", flush=True)
            step += 1


# --- the story -------------------------------------------------------------------------------------------------


class _Story:
    def __init__(self, file: Path, *, is_told: bool) -> None:
        self._file = file
        self._url = f"sqlite:{file}"
        self._is_told = is_told

    def run(self, is_kept: bool) -> DemoResult:
        self._tell("1. An agent saves its growing state. In the middle of a save it is killed.")
        acknowledged, unconfirmed = self._kill_a_writer()
        self._say(f"SIGKILL. {acknowledged} saves had been acknowledged; save {unconfirmed} was under way.")
        self._tell("2. The store is opened again. Every acknowledged save must be there, exactly.")
        found = self._check_all(acknowledged, unconfirmed)
        half = "had arrived whole" if found == unconfirmed else "left no trace"
        self._say(f"All {acknowledged} are there and equal. Save {unconfirmed}, cut off, {half}.")
        self._tell("3. The history:")
        self._holdfast("history", SESSION)
        self._tell("4. One bit of the newest checkpoint is flipped in the database file.")
        damaged = self._damage_newest()
        self._say(f"Damaged: {damaged}")
        self._tell("5. Loading notices, says so, and falls back to the newest intact checkpoint.")
        recovered = self._check_fallback(damaged, found)
        self._tell("6. `verify` finds the damaged checkpoint:")
        report = self._holdfast("verify", SESSION, expect=DAMAGE)
        findings = [line for line in report.splitlines() if line.startswith("DAMAGED")]
        _expect(
            bool(findings) and all(damaged in line for line in findings),
            "verify names the damaged checkpoint, and only it",
        )
        return DemoResult(
            acknowledged=acknowledged,
            unconfirmed=unconfirmed,
            found=found,
            damaged=damaged,
            recovered=recovered,
            store=self._url,
            is_kept=is_kept,
        )

    def _kill_a_writer(self) -> tuple[int, int]:
        """The last save that was acknowledged, and the one that was under way."""
        for _ in range(MAX_ROUNDS):
            said = self._said_until_killed()
            last = said[-1].split() if said else []
            acknowledged = max((int(line.split()[1]) for line in said if line.startswith("ACK")), default=0)
            if acknowledged and last[0] == "SAVE":
                return acknowledged, int(last[1])
        raise HoldfastError("the writer was never caught in the middle of a save", code="demo_failed")

    def _said_until_killed(self) -> list[str]:
        with _process([sys.executable, "-c", WRITER, self._url]) as writer:
            assert writer.stdout is not None
            said = []
            for line in writer.stdout:
                said.append(line.strip())
                if len(said) == 2 * SAVES_BEFORE_KILL:
                    time.sleep(random.uniform(0, 0.02))
                    writer.kill()
            return said

    def _check_all(self, acknowledged: int, unconfirmed: int) -> int:
        with _open(self._url) as store:
            session = store.get(SESSION)
            steps = [header.step for header in session.history(newest_first=False)]
            _expect(
                steps in ([*range(1, acknowledged + 1)], [*range(1, unconfirmed + 1)]),
                f"the steps 1 to {acknowledged} are there",
            )
            for step in range(1, len(steps) + 1):
                state = session.load(f"step-{step}").state
                _expect(state == state_at(step), f"the state of step {step} came back exactly")
            return len(steps)

    def _damage_newest(self) -> str:
        """Flip a bit of the stored bytes behind the library's back, spare copies included."""
        import apsw

        with _open(self._url) as store:
            checkpoint = store.get(SESSION).header("latest").id
        connection = apsw.Connection(str(self._file))
        try:
            place = "FROM bodies WHERE checkpoint = ? AND name = ?"
            rows: list[Any] = connection.execute(
                f"SELECT rowid, data {place}", (checkpoint, STATE)
            ).fetchall()
            for row, data in rows:
                middle = len(data) // 2
                flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                connection.execute("UPDATE bodies SET data = ? WHERE rowid = ?", (flipped, row))
            _expect(connection.total_changes() > 0, "bytes were damaged")
        finally:
            connection.close()
        return checkpoint

    def _check_fallback(self, damaged: str, found: int) -> str:
        text = self._holdfast("show", SESSION, limit=4)
        _expect(
            "Latest checkpoint corrupted, using history checkpoint from" in text, "the fallback is announced"
        )
        with _quiet(), _open(self._url) as store:
            checkpoint = store.get(SESSION).latest()
        _expect(checkpoint is not None and checkpoint.fallback is not None, "an older checkpoint is loaded")
        assert checkpoint is not None
        _expect(checkpoint.id != damaged and checkpoint.id in text, "it is not the damaged one")
        _expect(checkpoint.step == found - 1, "it is the one before the damaged one")
        _expect(checkpoint.state == state_at(found - 1), "its state is exact")
        return checkpoint.id

    def _holdfast(self, *args: str, expect: int = 0, limit: int | None = None) -> str:
        """Run the real command, show what it prints, and return it."""
        self._say(f"$ holdfast {' '.join(args)}")
        command = [sys.executable, "-m", "holdfast", "--store", self._url, *args]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
        logs, data = done.stderr.splitlines(), done.stdout.splitlines()
        for line in logs + data[:limit]:
            self._say(f"  {line}")
        if limit is not None and len(data) > limit:
            self._say("  …")
        _expect(done.returncode == expect, f"`holdfast {args[0]}` exits with {expect}, not {done.returncode}")
        return done.stderr + done.stdout

    def _tell(self, text: str) -> None:
        if self._is_told:
            lines(["", *_wrapped(text)])

    def _say(self, text: str) -> None:
        if self._is_told:
            lines(_wrapped(f"   {text}"))


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A child that does not outlive the block."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log silent where its lines were shown already."""
    import logging

    logger = logging.getLogger("holdfast")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def _wrapped(text: str) -> list[str]:
    """The text in lines that fit the terminal; elsewhere as it is."""
    if not is_terminal():
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    return textwrap.wrap(
        text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise HoldfastError(f"not as promised: {what}", code="demo_failed")


COMMANDS = {"demo": demo}
