"""`stepkeep demo`: a workflow, two kills and a damaged checkpoint, for real, and how the work is finished all the same.

Everything is done by the real commands in processes of their own, and what they promise is checked: the demo ends with
an error where anything did not happen as it was told.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from stepkeep import api
from stepkeep.cli.app import CommonOptions, command
from stepkeep.cli.printing import is_terminal, lines, styled, width
from stepkeep.errors import StepkeepError
from stepkeep.model import STATE
from stepkeep.text import shortened

SESSION: Final = "tides"
STEPS: Final = ("fetch", "check", "analyse", "report", "publish")
EXAMPLE: Final = "stepkeep demo --keep"
KEEP_LAST: Final = 4
TIMEOUT_SECONDS: Final = 20

WORKFLOW: Final = """\
name: tides
checkpoint: { profile: archive }
steps:
  - id: fetch
    shell: echo fetch >>begun.log; echo 10.9 12.1 11.7 9.8
    capture: levels
  - id: check
    shell: echo check >>begun.log; echo ${vars.levels} | wc -w | tr -d ' '
    capture: count
  - id: analyse
    shell: sh slowly.sh analyse; echo ${vars.levels} | tr ' ' '\\n' | sort -n | tail -n 1
    capture: highest
  - id: report
    shell: 'sh slowly.sh report; echo highest of ${vars.count}: ${vars.highest} m'
    capture: report
  - id: publish
    shell: echo publish >>begun.log; echo ${vars.report}
"""

SLOWLY: Final = """\
# A long step. It notes that it began, and lasts until somebody makes the file that lets it end.
echo "$1" >>begun.log
until test -e "let-$1-end"; do sleep 0.05; done
"""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. `begun` says how often each step was begun; the run was killed twice, and begun three times.

    `damaged` is the checkpoint whose bytes were changed, `recovered` the one the work went on from. `branch` is the
    one that the work was repeated on after going back in time.
    """

    begun: dict[str, int]
    damaged: str
    recovered: str
    branch: str
    pruned: int
    kept: int
    store: str
    is_kept: bool


@command("demo", EXAMPLE)
@click.option("--keep", is_flag=True, help="Keep the folder to look at it.")
def demo(settings: CommonOptions, keep: bool) -> None:
    """Run a workflow, kill it, damage its newest checkpoint, and see the work finished all the same.

    Then compare, travel back, and prune. Works in a temporary folder of its own, in a few seconds. Exits with an error
    when anything is not as promised.
    """
    folder = Path(tempfile.mkdtemp(prefix="stepkeep-demo-"))
    try:
        result = _Story(folder, is_told=not settings.json).run(keep)
    finally:
        if not keep:
            shutil.rmtree(folder)
    settings.show(result, lambda result: _print_end(result, folder))


def _print_end(result: DemoResult, folder: Path) -> None:
    place = f"kept in {folder}" if result.is_kept else "removed; --keep keeps it"
    lines(["", *_wrapped("Everything was as promised."), *_wrapped(f"The store is {place}.")])


# --- the story -------------------------------------------------------------------------------------------------


class _Story:
    def __init__(self, folder: Path, *, is_told: bool) -> None:
        self._folder = folder
        self._file = folder / "demo.db"
        self._url = f"sqlite:{self._file}"
        self._is_told = is_told
        self._chapter = 0

    def run(self, is_kept: bool) -> DemoResult:
        (self._folder / "flow.yaml").write_text(WORKFLOW, encoding="utf-8")
        (self._folder / "slowly.sh").write_text(SLOWLY, encoding="utf-8")
        self._tell("A workflow of five steps runs, saving after each. In its third step it is killed.")
        self._kill_in("analyse", "run", "flow.yaml", "--session", SESSION)
        self._tell(
            "It is resumed. The finished steps are not run again. In its fourth step it is killed, too."
        )
        self._let_end("analyse")
        before = self._kill_in("report", "resume", SESSION)
        _expect(_done_before(before) == ["fetch", "check"], "the finished steps are skipped")
        self._tell("Worse: a bit of the newest checkpoint flips. Resuming notices, and takes the one before.")
        damaged, recovered = self._survive_damage()
        begun = self._begun()
        _expect(tuple(begun.values()) == (1, 1, 3, 2, 1), "a step that was saved is not run again")
        counts = ", ".join(f"{step} {number}x" for step, number in begun.items())
        self._say(f"The command was started three times, and the steps: {counts}")
        self._tell("What did the work change? Any two checkpoints can be compared.")
        self._compare()
        self._tell(
            "And back in time: to where two steps were done, and on from there. Nothing is lost by that."
        )
        branch = self._travel_back()
        self._tell("Old checkpoints are pruned by rules, and each one says why it stays or goes.")
        kept, pruned = self._prune()
        return DemoResult(
            begun=begun,
            damaged=damaged,
            recovered=recovered,
            branch=branch,
            pruned=pruned,
            kept=kept,
            store=self._url,
            is_kept=is_kept,
        )

    @contextmanager
    def _session(self) -> Iterator[api.Session]:
        """The demo's session, to look into it; nobody's configuration has a say in it."""
        with api.open(self._url, config=api.Settings({})) as store:
            yield store.get(SESSION)

    def _let_end(self, step: str) -> None:
        (self._folder / f"let-{step}-end").touch()

    def _begun(self) -> dict[str, int]:
        """How often each step was begun, by what the steps themselves noted outside the store."""
        log = self._folder / "begun.log"
        counts = Counter(log.read_text(encoding="utf-8").split() if log.exists() else [])
        return {step: counts[step] for step in STEPS}

    # --- chapters

    def _kill_in(self, step: str, *args: str) -> list[str]:
        """Start a command and kill it while it runs a step; what it said until then."""
        begun = self._begun()[step]

        def is_reached(line: str) -> bool:
            return line.endswith(f"{step}: running") and _wait_until(lambda: self._begun()[step] > begun)

        said, code = self._stepkeep(*args, kill_at=is_reached)
        _expect(code == -signal.SIGKILL, f"the command is killed in step {step!r}")
        self._say("SIGKILL", colour="red")
        with self._session() as session:
            latest = session.header("latest")
        _expect(latest.step == STEPS.index(step), "every finished step is saved")
        return said

    def _survive_damage(self) -> tuple[str, str]:
        damaged, expected = self._damage_newest()
        self._say(f"Damaged: {damaged}", colour="red")
        self._let_end("report")
        said = self._done("the work comes to its end", "resume", SESSION)
        _expect(
            any("Latest checkpoint corrupted, using history checkpoint from" in line for line in said),
            "the damage is announced",
        )
        _expect(_done_before(said) == ["fetch", "check"], "only the step that was damaged is repeated")
        with self._session() as session:
            state = session.load().state
            origins = {parent for header in session.history() for parent in header.parents}
        _expect(state["variables"]["report"] == "highest of 4: 12.1 m", "the result is right")
        _expect(expected in origins and damaged not in origins, "it went on from the one before")
        return damaged, expected

    def _damage_newest(self) -> tuple[str, str]:
        """Flip a bit of the stored bytes behind the library's back; the checkpoint, and the one before it."""
        import apsw

        with self._session() as session:
            newest, before = (header.id for header in session.history(limit=2))
        connection = apsw.Connection(str(self._file))
        try:
            rows: list[Any] = connection.execute(
                "SELECT rowid, data FROM bodies WHERE checkpoint = ? AND name = ?", (newest, STATE)
            ).fetchall()
            for row, data in rows:
                middle = len(data) // 2
                flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                connection.execute("UPDATE bodies SET data = ? WHERE rowid = ?", (flipped, row))
            _expect(connection.total_changes() > 0, "bytes were damaged")
        finally:
            connection.close()
        return newest, before

    def _compare(self) -> None:
        asked = ("diff", SESSION, "--from", "step-2", "--to", "latest")
        said = self._done("two checkpoints can be compared", *asked)
        _expect(any('+ highest: "12.1"' in line for line in said), "the difference names the new variable")

    def _travel_back(self) -> str:
        self._done("an old checkpoint can be restored", "restore", SESSION, "step-2")
        with self._session() as session:
            branch, state = session.info.branch, session.load().state
            end = session.load("branch:main").state
        _expect(state["current_step"] == 2, "the session is back at step 2")
        _expect(end["current_step"] == len(STEPS), "what came after is still there")
        self._done("the work can be done again from there", "resume", SESSION)
        said = self._done("there is a timeline", "timeline", SESSION)
        _expect(any(f"[{branch}]" in line for line in said), "the timeline shows both branches")
        return branch

    def _prune(self) -> tuple[int, int]:
        """How many checkpoints were kept and removed."""
        rules = ("prune", SESSION, "--keep-last", str(KEEP_LAST))
        said = self._done("pruning can be planned", *rules, "--dry-run")
        with self._session() as session:
            before = session.usage().checkpoints
        reasons = [line for line in said if "  stays  " in line or "  goes   " in line]
        _expect(len(reasons) == before, "every checkpoint has its reason")
        self._done("pruning works", *rules)
        with self._session() as session:
            after, state = session.usage().checkpoints, session.load().state
        _expect(after < before and state["current_step"] == len(STEPS), "the newest state stays")
        self._done("what is left is intact", "verify")
        return after, before - after

    # --- doing and telling

    def _done(self, what: str, *args: str) -> list[str]:
        """Run a command that has to succeed; its lines."""
        said, code = self._stepkeep(*args)
        _expect(code == 0, what)
        return said

    def _stepkeep(
        self, *args: str, kill_at: Callable[[str], bool] = lambda _: False
    ) -> tuple[list[str], int]:
        """Run the real command and show what it prints, until a line at which it is killed; its lines and exit code."""
        self._say(f"$ stepkeep {' '.join(args)}", colour="cyan")
        said: list[str] = []
        child = subprocess.Popen(
            [sys.executable, "-m", "stepkeep", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=self._environment(),
            encoding="utf-8",
        )
        assert child.stdout is not None
        try:
            for line in child.stdout:
                said.append(line.rstrip("\n"))
                self._show(f"     {said[-1]}")
                if kill_at(said[-1]):
                    child.kill()
                    break
            return said, child.wait()
        finally:
            child.kill()
            child.communicate()

    def _environment(self) -> dict[str, str]:
        """The environment of a command that knows nobody's configuration."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("STEPKEEP_")}
        return environ | {
            "STEPKEEP_STORE": self._url,
            "XDG_CONFIG_HOME": str(self._folder),
            "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path),
            "PYTHONIOENCODING": "utf-8",
        }

    def _tell(self, text: str) -> None:
        self._chapter += 1
        if self._is_told:
            lines(["", *_wrapped(f"{self._chapter}. {text}")])

    def _say(self, text: str, *, colour: str | None = None) -> None:
        if self._is_told:
            lines(styled(line, colour) for line in _wrapped(f"   {text}"))

    def _show(self, line: str) -> None:
        """A line of a command: sentences continue below, tables are cut off where the terminal ends."""
        if self._is_told:
            is_sentence = line.lstrip().startswith("warning: ")
            lines(_wrapped(line) if is_sentence or not is_terminal() else [shortened(line, width())])


def _done_before(said: list[str]) -> list[str]:
    """The steps that a command found finished, by its lines such as `[1/5] fetch: done before`."""
    return [line.split()[1].rstrip(":") for line in said if line.endswith(": done before")]


def _wait_until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise StepkeepError(f"not as promised: {what}", code="demo_failed")


def _wrapped(text: str) -> list[str]:
    """The text in lines that fit the terminal; elsewhere as it is."""
    if not is_terminal():
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 3)
    return textwrap.wrap(
        text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
