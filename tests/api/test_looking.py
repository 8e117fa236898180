"""Looking into states without sending all of them, finding texts, and sessions at a glance."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

import stepkeep
from stepkeep import InvalidInput, NotFound, Store
from stepkeep.history.changes import text_marks
from tests import interpreter

STATE = {
    "n": 1,
    "items": [{"id": "a", "pair": (1, 2)}, "text"],
    "labels": {"x"},
    "when": datetime(2026, 1, 2),
    7: None,
    "odd key.": True,
}


def test_an_outline_names_what_is_below_by_paths_that_lead_there(url: str) -> None:
    """Every entry of an outline has a path; its outline has the same kind and size, and its value is the one there."""
    with stepkeep.open(url) as store:
        store.session("s").save(STATE)
    with stepkeep.open(url) as store:
        run = store.get("s")
        checkpoint = run.load()
        waiting, seen = ["$"], 0
        while waiting:
            outline = checkpoint.outline(waiting.pop())
            for entry in outline.entries:
                found = checkpoint.outline(entry.path)
                assert (found.kind, found.size_bytes, found.count) == (
                    entry.kind,
                    entry.size_bytes,
                    entry.count,
                )
                assert len(bytes(run.show_value("latest", entry.path).value)) == entry.size_bytes
                waiting.append(entry.path)
                seen += 1
        assert seen == 13
        assert checkpoint.outline('items[id="a"].pair').kind == "tuple"
        assert [entry.name for entry in checkpoint.outline(start=1, limit=2).entries] == ["items", "labels"]
        with pytest.raises(NotFound) as nowhere:
            checkpoint.outline("items[5]")
        assert nowhere.value.code == "path_not_found"


def test_long_texts_are_cut_and_say_so(url: str) -> None:
    """An outline holds a bounded part of a long text, and tells that there is more."""
    with stepkeep.open(url) as store:
        run = store.session("s")
        run.save({"long": "x" * 1_000_000})
        entry = run.load().outline().entries[0]
        assert (len(entry.text), entry.is_whole, entry.size_bytes) == (300, False, 1_000_002)
        assert len(run.load().outline("long").text) == 20_000


def test_a_key_of_a_megabyte_is_cut(url: str) -> None:
    """An outline stays small whatever the keys are; what cannot be asked for has no path."""
    with stepkeep.open(url) as store:
        run = store.session("s")
        run.save({"k" * 1_000_000: {"inner": 1}, "short": 2})
        first, second = run.load().outline().entries
        assert (len(first.name), first.path, first.count) == (1000, "", 1)
        assert second.path == "short"
        assert len(run.find("inner").matches) == 0
        assert len(run.find("2").matches[0].path or "") < 100


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ({"channel_values": {"messages": [{"type": "human", "content": "hi"}]}}, "channel_values.messages"),
        ([{"role": "user", "parts": [{"text": "hi"}]}], "$"),
        ([{"type": "human", "data": {"content": "hi", "type": "human"}}], "$"),
        ([{"lc": 1, "kwargs": {"content": "hi", "type": "human"}}], "$"),
    ],
)
def test_a_conversation_is_found_where_it_is(url: str, state: object, place: str) -> None:
    """Messages are recognised by who speaks and what is said, wherever in the state they are."""
    with stepkeep.open(url) as store:
        store.session("s").save(state)
        found = store.get("s").load().conversation()
        assert (found.path, found.total) == (place, 1)
        assert [(each.role, each.text) for each in found.messages] == [("user", "hi")]


def test_a_state_without_messages_has_no_conversation(url: str) -> None:
    """Lists of other things are not taken for messages."""
    with stepkeep.open(url) as store:
        store.session("s").save({"rows": [{"id": 1, "type": "row"}], "list": [1, 2], "empty": []})
        assert store.get("s").load().conversation().path is None


def test_a_text_is_found_once_where_it_appeared(url: str) -> None:
    """A value that stays is told once, one that comes back is told again, and damaged checkpoints are passed over."""
    with stepkeep.open(url) as store:
        run = store.session("s")
        run.save({"log": ["start"]}, message="Needle in a message", tags=["needle"])
        run.save({"log": ["start", 'a NEEDLE "here"']})
        run.save({"log": ["start", 'a NEEDLE "here"', "more"]})
        run.save({"log": []})
        run.save({"log": ["start", 'a NEEDLE "here"']}, metadata={"note": "needle"})
    with stepkeep.open(url) as store:
        found = store.get("s").find("needle")
        places = [(each.checkpoint.seq, each.where, each.path) for each in found.matches]
        assert places == [
            (1, "message", None),
            (1, "tag", None),
            (2, "state", "log[1]"),
            (5, "metadata", None),
            (5, "state", "log[1]"),
        ]
        assert [each.text for each in found.matches if each.path] == ["NEEDLE", "NEEDLE"]
        quoted = store.get("s").find('needle "here"', limit=1)
        assert (len(quoted.matches), quoted.has_more) == (1, True)
        assert list(store.get("s").matches("needle", should_stop=lambda: True)) == []
        with pytest.raises(InvalidInput):
            store.get("s").find("")


def test_the_command_finds_in_one_session_or_all(url: str) -> None:
    """`stepkeep find` prints the places, one a line, and the same as JSON."""
    with stepkeep.open(url) as store:
        store.session("one").save({"answer": "forty-two\x1b[31m"})
        store.session("two").save({}, message="forty-two again")
    env = {**os.environ, "STEPKEEP_STORE": url}
    done = interpreter.stepkeep("find", "FORTY", "--session", "one", env=env)
    assert done.stdout.split("  ")[-1] == "answer: forty-two\\x1b[31m\n"
    found = json.loads(interpreter.stepkeep("find", "forty", "--all", "--json", env=env).stdout)
    assert {each["session"]: len(each["matches"]) for each in found} == {"one": 1, "two": 1}
    assert interpreter.stepkeep("find", "fifty", "--all", env=env).stdout == "Not found.\n"


def test_sessions_are_found_by_what_they_say(url: str) -> None:
    """A text is looked for in keys, metadata, messages and tags; pages follow each other without gaps."""
    with stepkeep.open(url) as store:
        for n in range(7):
            store.session(f"s{n}").save({"n": n}, message=f"message {n}", tags=[f"tag-{n}"])
        store.session("plain", metadata={"task": "Fix the build"}).save({})
        store.get("s3").complete()
    with stepkeep.open(url) as store:
        assert [(each.key, each.task) for each in store.overview(text="fix THE").sessions] == [
            ("plain", "Fix the build")
        ]
        assert [each.key for each in store.overview(text="message 4").sessions] == ["s4"]
        assert [each.key for each in store.overview(text="TAG-5").sessions] == ["s5"]
        assert [each.key for each in store.overview(status="completed").sessions] == ["s3"]
        keys, after = [], None
        while True:
            page = store.overview(limit=3, after=after)
            keys += [each.key for each in page.sessions]
            after = page.next
            if after is None:
                break
        assert page.usage.sessions == 8
        assert sorted(keys) == ["plain", *(f"s{n}" for n in range(7))]
        assert (store.get("s3").overview().condition, store.get("s4").overview().condition) == (
            "completed",
            "open",
        )


def test_a_run_is_seen_while_it_runs_and_after_its_process_died(url: str, tmp_path: Path) -> None:
    """A script under way is running; killed it is crashed, with its finished steps; at its end it is completed."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, stepkeep\n"
        f"with stepkeep.open({url!r}) as store, store.run('r') as run:\n"
        "    run.step('fetch', lambda: 'page')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    interpreter.python(str(program))
    with stepkeep.open(url) as store:
        view = store.get("r").run_view()
        assert (view.kind, view.session.condition) == ("script", "crashed")
        assert [each.key for each in store.overview(condition="crashed").sessions] == ["r"]
        assert [(step.id, step.status, step.has_output) for step in view.steps] == [
            ("fetch", "completed", True)
        ]
        with store.run("r") as run:
            assert run.step("fetch", lambda: "other") == "page"
            assert store.get("r").overview().condition == "running"
        assert store.get("r").overview().condition == "completed"
        assert [each.key for each in store.overview(runs_only=True).sessions] == ["r"]
        assert store.overview(condition="crashed").sessions == ()


def test_a_plan_shows_its_steps(store: Store) -> None:
    """The steps of a plan have status, duration, attempts, and the error of the one that failed."""
    tries: list[str] = []

    def handler(context: stepkeep.StepContext) -> str:
        tries.append(context.step.id)
        if context.step.id == "b" or tries == ["a"]:
            raise ValueError("no")
        return "ok"

    store.execute("p", [{"id": "a", "retry": 3}, {"id": "b", "dependencies": ["a"]}], handler)
    view = store.get("p").run_view()
    assert [(step.id, step.status) for step in view.steps] == [("a", "completed"), ("b", "failed")]
    assert view.steps[0].attempts == 2
    assert (view.kind, view.session.is_run) == ("plan", True)
    assert "no" in (view.steps[1].error or "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a b c", "a x c"),
        ("", "new"),
        ("same " * 200 + "one", "same " * 200 + "two"),
        ("abab", "ab"),
        ("x", "x"),
    ],
)
def test_marks_give_back_both_texts(old: str, new: str) -> None:
    """Without what is added the marks read as the old text, without what is removed as the new one."""
    marks = [mark for mark in text_marks(old, new) if mark.kind != "left_out"]
    assert old.endswith("".join(mark.text for mark in marks if mark.kind != "added"))
    assert new.endswith("".join(mark.text for mark in marks if mark.kind != "removed"))
