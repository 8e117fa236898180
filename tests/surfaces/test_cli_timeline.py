"""`stepkeep timeline`: the graph on a terminal, in a pipe, as JSON and as a picture."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import apsw
import pytest
from rich.cells import cell_len

import stepkeep
from stepkeep import aio, api, config
from stepkeep.model import to_us
from tests.surfaces.test_cli import Cli

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
PICTURE = ROOT / "docs" / "pictures" / "timeline.svg"
START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
NO_KEEPER = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})

_open = api.open


class Clocked(Cli):
    """A command line with a clock that moves only when it is told to."""

    time = START

    def open(self) -> stepkeep.Store:
        return _open(self.url, config=NO_KEEPER, clock=lambda: to_us(self.time))

    def wait(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def line(self, key: str = "run", count: int = 3, **options: Any) -> None:
        """A session of so many checkpoints, one a minute."""
        with self.open() as store:
            for step in range(1, count + 1):
                self.wait(60)
                store.session(key, profile="archive").save({"n": step}, step=step, **options)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocked:
    """Commands see the time of their store, and no configuration of the person who runs the tests."""
    (tmp_path / "work").mkdir()
    cli = Clocked(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(api, "open", partial(_open, clock=lambda: to_us(cli.time)))
    return cli


# --- a history of everything -----------------------------------------------------------------------------------


def small_state(step: int) -> object:
    """A state that is stored as it is, whichever compressor is there."""
    return {"step": step}


def growing_state(step: int) -> object:
    """A state as an agent has it: a list of findings that gets longer."""
    return {
        "query": "tides",
        "findings": [f"finding {n}: {n * 7919 % 10_007} of 10,007" for n in range(3 * step)],
    }


def mixed_history(cli: Clocked, state: Callable[[int], object] = small_state) -> None:
    """A session with all that a timeline shows: a failure and a restore, branches saved in turn, a merge, tags."""
    pauses = cycle([31, 47, 22, 64, 38])
    steps = iter(range(1, 1000))

    with cli.open() as store:
        run = store.session("research-42", profile="archive")

        def save(count: int = 1, **options: Any) -> None:
            for _ in range(count):
                cli.wait(next(pauses))
                step = next(steps)
                run.save(state(step), step=step, **options)

        save(trigger="manual", message="plan made", tags=["plan"])
        save(24)
        save(trigger="manual", message="sources checked", tags=["verified"])
        save(18)
        save(trigger="error", status="failed", message="search tool timed out")
        run.restore("tag:verified", branch="smaller-steps")
        save(30)
        save(trigger="manual", message="first draft", tags=["draft"])
        run.branches.fork("latest", "cheap-model", switch=False)
        for _ in range(12):
            save(branch="cheap-model")
            save()
        save(branch="cheap-model", trigger="manual", message="summary is as good, at a tenth of the price")
        cli.wait(30)
        run.branches.merge("cheap-model", strategy="theirs", message="take the summary of cheap-model")
        save(2)
        save(trigger="manual", status="completed", message="report sent", tags=["final", "verified"])


def _golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_mixed_history(cli: Clocked, columns: int) -> None:
    """Branches, failures, manual and automatic checkpoints fit lines of 80 and of 200 columns."""
    mixed_history(cli)
    done = cli.here("timeline", "research-42", COLUMNS=str(columns))
    assert done.out == _golden(f"timeline_{columns}.txt")
    assert columns > 80 or done.out in (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert (done.code, done.err) == (0, "")
    assert max(map(cell_len, done.out.splitlines())) <= columns


def test_the_picture_of_the_documents_is_what_the_command_draws(cli: Clocked) -> None:
    """The README's picture shows the mixed history, up to sizes, which depend on the compressor."""
    mixed_history(cli, growing_state)
    assert cli.here("timeline", "--svg", "timeline.svg").code == 0
    assert _words(cli.folder / "timeline.svg") == _words(PICTURE)
    assert PICTURE.stat().st_size < 60_000


def _words(picture: Path) -> list[str]:
    texts = [element.text or "" for element in ElementTree.parse(picture).iter() if "text" in element.tag]
    return [re.sub(r"\d+(\.\d+)?(B|KB|MB)\b", "SIZE", text) for text in texts]


@pytest.mark.full
def test_a_terminal_gets_colours_and_its_own_width(cli: Clocked) -> None:
    """On a terminal lines fit its columns, and differ from those of a pipe only in colour."""
    mixed_history(cli)
    for columns in (80, 200):
        code, shown = cli.terminal("timeline", "research-42", columns=columns)
        assert code == 0
        assert "\x1b[36m" in shown
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")
        assert plain == _golden(f"timeline_{columns}.txt")


def test_an_output_without_unicode_gets_ascii(cli: Clocked) -> None:
    """Where the encoding has no box characters the graph is drawn in ASCII, and so are all texts."""
    cli.line(count=1, message="né漢字\n", tags=["ü"])
    done = cli("timeline", "run", PYTHONIOENCODING="ascii", COLUMNS="100")
    assert done.code == 0
    assert done.out.isascii()
    assert (
        r"o   1 03-02 08:01:00    1   7B     7B auto [main] <- current tag:\xfc n\xe9\u6f22\u5b57\n"
        in done.out
    )


# --- which session ---------------------------------------------------------------------------------------------


def test_without_a_session_it_is_the_current_one(cli: Clocked) -> None:
    """The session last saved into, which is said on stderr; or the one of the environment."""
    cli.line("older")
    cli.line("newer")
    done = cli.here("timeline")
    assert done.out.startswith("newer: ")
    assert "newer" in done.err
    done = cli.here("timeline", STEPKEEP_SESSION="older")
    assert (done.out.partition(":")[0], done.err) == ("older", "")


def test_all_sessions(cli: Clocked) -> None:
    """With --all each session has its graph, the most recently used first; empty ones say so."""
    cli.line("first")
    cli.wait(60)
    cli.line("second", tags=["t"])
    cli.wait(60)
    with cli.open() as store:
        store.session("empty")
    done = cli.here("timeline", "--all")
    assert [line for line in done.out.splitlines() if line and line[0].isalpha()] == [
        "empty: in_progress, no checkpoint yet",
        "second: in_progress, 3 checkpoints, 21B stored",
        "first: in_progress, 3 checkpoints, 21B stored",
    ]
    tagged = cli.here("timeline", "--all", "--tag", "t", "--json").json
    assert [each["session"] for each in tagged["timelines"]] == ["second"]
    since = cli.here("timeline", "--all", "--since", "3 minutes ago", "--json").json
    assert [each["session"] for each in since["timelines"]] == ["second"]


def test_all_with_what_no_session_has(cli: Clocked) -> None:
    """A branch or tag that exists nowhere is not found."""
    cli.line()
    for option in ("--branch", "--tag"):
        done = cli.here("timeline", "--all", option, "nope")
        assert (done.code, done.out) == (3, "")
        assert "no session has" in done.err


def test_an_empty_session_is_no_error(cli: Clocked) -> None:
    """It says so in one line."""
    with cli.open() as store:
        store.session("new")
    done = cli.here("timeline", "new")
    assert (done.code, done.out, done.err) == (0, "new: in_progress, no checkpoint yet\n", "")


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["run", "--branch", "nope"], 3, "has no branch 'nope': there is main"),
        (["run", "--tag", "nope"], 3, "has no checkpoint with tag 'nope': its tags are t"),
        (["run", "--since", "sometime"], 2, "sometime"),
        (["run", "--since", "2026-02-30"], 2, "2026-02-30"),
        (["run", "--limit", "0"], 2, "0"),
        (["run", "--all"], 2, "exclude each other"),
        (["run", "--force"], 2, "--svg"),
        (["run", "--svg", "-", "--json"], 2, "--json"),
        (["run", "--svg", ""], 2, "--svg"),
        (["missing"], 3, "no session 'missing'"),
    ],
)
def test_bad_input_is_told(cli: Clocked, args: list[str], code: int, text: str) -> None:
    """One line says what is wrong and what there is."""
    cli.line(tags=["t"])
    done = cli.here("timeline", *args)
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert done.err.count("\n") == 1


# --- filters ---------------------------------------------------------------------------------------------------


def test_filters_leave_a_connected_graph(cli: Clocked) -> None:
    """What is left out is folded where it lies between, and counted where it leads elsewhere."""
    mixed_history(cli)
    by_tag = cli.here("timeline", "research-42", "--tag", "verified").out
    assert by_tag == _golden("timeline_tag.txt")
    by_branch = cli.here("timeline", "research-42", "--branch", "main").out
    assert by_branch == _golden("timeline_branch.txt")
    since = cli.here("timeline", "research-42", "--since", "2026-03-02 08:51", "--limit", "6").out
    assert since == _golden("timeline_since.txt")


def test_full_folds_nothing(cli: Clocked) -> None:
    """With --full every checkpoint has its line."""
    cli.line(count=50)
    assert len(cli.here("timeline", "run").out.splitlines()) == 2 + 3
    assert len(cli.here("timeline", "run", "--full").out.splitlines()) == 2 + 50


# --- what is missing -------------------------------------------------------------------------------------------


def test_pruned_and_damaged_checkpoints(cli: Clocked) -> None:
    """What was pruned is a row of its own; a damaged header keeps its place and is warned of, the rest is drawn."""
    cli.line(count=12)
    with cli.open() as store:
        run = store.session("run")
        run.prune(keep_last=8)
        damaged = run.header("#9").id
    connection = apsw.Connection(str(cli.file))
    connection.execute("UPDATE checkpoints SET header = X'00' || substr(header, 2) WHERE id = ?", (damaged,))
    connection.close()
    done = cli.here("timeline", "run", COLUMNS="80")
    assert done.code == 0
    assert "◌ 4 pruned, 1–4" in done.out.splitlines()
    assert "! checkpoint 9 has a damaged header: run stepkeep verify" in done.out.splitlines()
    assert "1 damaged header in run: run stepkeep verify" in done.err
    found = cli.here("timeline", "run", "--json").json["timelines"][0]
    assert (found["total"], found["pruned"], found["damaged"]) == (7, 4, [damaged])
    assert [row["kind"] for row in found["rows"]] == [
        *["checkpoint"] * 3,
        "damaged",
        *["checkpoint"] * 4,
        "pruned",
    ]


def test_hostile_texts_cannot_reach_the_terminal(cli: Clocked) -> None:
    """Escape sequences and line breaks in messages, tags, branches and keys are shown, not acted upon."""
    nasty = "\x1b]0;owned\x07\n\u202eevil <b>&"
    with cli.open() as store:
        store.session(nasty).save({}, message=nasty * 50, tags=[nasty, "t" * 1000], branch=nasty)
    done = cli.here("timeline", nasty, COLUMNS="80")
    assert done.code == 0
    assert all(line.isprintable() for line in done.out.splitlines())
    assert max(map(cell_len, done.out.splitlines())) <= 80
    picture = cli.here("timeline", nasty, "--svg", "-").out
    ElementTree.fromstring(picture)
    assert "\x1b" not in picture
    assert "<b>" not in picture


# --- as JSON, as a picture, from Python ------------------------------------------------------------------------


def test_json_has_every_checkpoint(cli: Clocked) -> None:
    """JSON is not folded: all checkpoints with lane and links, the branches, the sums."""
    mixed_history(cli)
    found = cli.here("timeline", "research-42", "--json").json["timelines"][0]
    assert len(found["rows"]) == found["total"] == 105
    assert {row["kind"] for row in found["rows"]} == {"checkpoint"}
    head, merge = found["rows"][0], found["rows"][3]
    assert (head["heads"], head["is_current"], head["lane"]) == (["smaller-steps"], True, 0)
    assert [found["rows"][link["row"]]["checkpoint"]["id"] for link in merge["links"]] == merge["checkpoint"][
        "parents"
    ]
    assert [(each["name"], each["state"], each["is_current"]) for each in found["branches"]] == [
        ("main", "open", False),
        ("smaller-steps", "open", True),
        ("cheap-model", "merged", False),
    ]
    forks = {row["checkpoint"]["seq"]: row["forks"] for row in found["rows"] if row["forks"]}
    assert forks == {76: ["cheap-model"], 26: ["smaller-steps"]}


def test_a_picture_is_written_whole_and_private(cli: Clocked) -> None:
    """--svg writes a file for its owner only, and over another only with --force."""
    cli.line()
    done = cli.here("timeline", "run", "--svg", "run.svg")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Wrote run.svg (1 session, 3 rows, ")
    file = cli.folder / "run.svg"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert cli.here("timeline", "run", "--svg", "run.svg").code == 2
    replaced = cli.here("timeline", "run", "--svg", "run.svg", "--force", "--json")
    assert replaced.json == {
        "sessions": ["run"],
        "rows": 3,
        "output": "run.svg",
        "size_bytes": file.stat().st_size,
        "errors": [],
    }
    assert cli.here("timeline", "run", "--svg", "no/such/folder/run.svg").code == 1
    assert [path.name for path in cli.folder.glob("*svg*")] == ["run.svg"]


def test_the_library_gives_the_same(cli: Clocked) -> None:
    """`Session.timeline` has the entries newest first, folds on request, and reads no states."""
    mixed_history(cli)
    with cli.open() as store:
        run = store.get("research-42")
        whole = run.timeline()
        assert [entry.checkpoint.seq for entry in whole.entries] == list(range(105, 0, -1))
        assert whole.entries[3].mark == "merge"
        assert len(run.timeline(fold=True).rows) < 20
        assert [entry.checkpoint.seq for entry in run.timeline(tag="verified").entries] == [105, 102, 76, 26]
        assert run.timeline(since=cli.time).rows[0] == run.timeline(limit=1).rows[0]
        with pytest.raises(stepkeep.InvalidInput):
            run.timeline(limit=0)


def test_asyncio_gives_the_same(cli: Clocked) -> None:
    """The facade awaits the same value."""
    cli.line()

    async def read() -> stepkeep.Timeline:
        async with aio.open(cli.url) as store:
            return await (await store.get("run")).timeline(limit=2)

    found = asyncio.run(read())
    with cli.open() as store:
        assert found == store.get("run").timeline(limit=2)


def test_json_of_errors(cli: Clocked) -> None:
    """With --json an unknown branch is an error object that names it."""
    cli.line()
    done = cli.here("timeline", "run", "--branch", "nope", "--json")
    assert done.code == 3
    assert json.loads(done.err)["error"]["code"] == "branch_not_found"
