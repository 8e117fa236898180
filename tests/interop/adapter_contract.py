"""What every adapter of a framework owes its users, through the framework's public way of running an agent."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import stepkeep
from stepkeep.cli import main
from stepkeep.errors import Corrupt
from stepkeep.web.answers import ANSWERS, Opened, Params
from tests.interop.conftest import Bodies

ROOT = Path(__file__).parents[2]


def turns(
    name: str, url: str, *prompts: str, conversation: str = "c", hold: bool = False
) -> subprocess.Popen[str]:
    """Run turns of a conversation in a process of its own."""
    arguments = [*(["--hold"] if hold else []), name, url, conversation, *prompts]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.interop.offline", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}


def program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def answers(process: subprocess.Popen[str]) -> list[list[str]]:
    """What the framework remembered after each turn, once the process ended well."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


class AdapterContract:
    """Subclass it with the name of a module of `tests.interop.offline`, and whether the framework awaits its store."""

    NAME: ClassVar[str]
    IS_AWAITED: ClassVar[bool] = True

    @pytest.fixture
    def store(self, url: str) -> Iterator[stepkeep.Store]:
        with stepkeep.open(url) as store:
            yield store

    @pytest.fixture
    def agent(self, store: stepkeep.Store) -> Any:
        return self.make(store)

    def make(self, store: stepkeep.Store, retention: stepkeep.RetentionRules | None = None) -> Any:
        return importlib.import_module(f"tests.interop.offline.{self.NAME}").Agent(store, retention)

    def test_a_killed_program_goes_on_in_another_process(self, url: str) -> None:
        """What a turn acknowledged is there after a kill, and the next process goes on with it."""
        first = turns(self.NAME, url, "one", "two", hold=True)
        assert first.stdout is not None
        seen = [json.loads(first.stdout.readline()) for _ in range(2)]
        first.kill()
        first.communicate()
        assert seen == [["one"], ["one", "two"]]
        assert answers(turns(self.NAME, url, "three")) == [["one", "two", "three"]]

    def test_two_programs_at_once_lose_nothing(self, url: str) -> None:
        """Each runs turns of a conversation of its own, in a store that neither had opened before."""
        running = [turns(self.NAME, url, "one", "two", conversation=name) for name in "ab"]
        assert [answers(each) for each in running] == [[["one"], ["one", "two"]]] * 2
        with stepkeep.open(url) as store:
            assert store.verify().is_intact

    def test_history_is_that_of_an_ordinary_session(self, agent: Any, store: stepkeep.Store) -> None:
        """Old states can be read, compared and gone back to, and every byte verifies."""
        for prompt in ("one", "two"):
            asyncio.run(agent.turn("c", prompt))
        session = store.get(agent.key("c"))
        checkpoints = list(session.history())
        assert len(checkpoints) > 1
        assert session.diff(checkpoints[-1].id, checkpoints[0].id).summary
        assert len(session.timeline().entries) == len(checkpoints)
        assert '"two"' in json.dumps(session.load().state)
        assert store.verify().is_intact

    def test_an_agent_goes_on_from_an_older_checkpoint(
        self, agent: Any, store: stepkeep.Store, url: str
    ) -> None:
        """What was said after it is on the branch that was left, and in nothing that the framework remembers."""
        asyncio.run(agent.turn("c", "one"))
        session = store.get(agent.key("c"))
        before = session.header("latest")
        asyncio.run(agent.write("c", "two"))
        left = session.header("latest")
        session.restore(before.id)
        assert asyncio.run(agent.turn("c", "three")) == ["one", "three"]
        with stepkeep.open(url) as again:
            assert asyncio.run(self.make(again).turn("c", "four")) == ["one", "three", "four"]
        assert len(session.branches.list().branches) == 2
        assert '"two"' in json.dumps(session.load(left.id).state)
        assert store.verify().is_intact

    def test_the_commands_and_the_pages_show_it(
        self, agent: Any, store: stepkeep.Store, url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """They know nothing of the framework: its sessions are like any other."""
        for prompt in ("one", "two"):
            asyncio.run(agent.turn("c", prompt))
        key = agent.key("c")
        capsys.readouterr()
        shown: dict[str, str] = {}
        for command, *options in (
            ("list",),
            ("timeline", key),
            ("show", key),
            ("diff", key),
            ("rewind", key),
        ):
            assert main([command, *options, "--store", url]) == 0, capsys.readouterr().err
            shown[command] = capsys.readouterr().out
        assert key in shown["list"]
        assert "main" in shown["timeline"]
        assert "two" in shown["show"] + shown["diff"]
        assert "stepkeep restore" in shown["rewind"]
        opened, about = Opened(store), {"key": key, "ref": "latest"}
        pages = {name: ANSWERS[name](opened, Params(about)) for name in ("session", "timeline", "outline")}
        assert all(msgspec.json.encode(page) for page in pages.values())

    def test_damage_is_an_error(self, agent: Any, store: stepkeep.Store, url: str, bodies: Bodies) -> None:
        """A conversation whose newest checkpoint is damaged is neither empty nor an older one."""
        asyncio.run(agent.turn("c", "one"))
        asyncio.run(agent.turn("c", "two"))
        newest = store.get(agent.key("c")).header("latest")
        bodies.damage(newest.id, "state")
        with stepkeep.open(url) as again, pytest.raises(Exception) as told:  # noqa: PT011 - the framework may wrap it
            asyncio.run(self.make(again).turn("c", "three"))
        assert any(isinstance(error, Corrupt) for error in causes(told.value)), told.value
        assert store.get(agent.key("c")).header("newest").id == newest.id

    def test_everything_is_kept_unless_told_otherwise(self, agent: Any, store: stepkeep.Store) -> None:
        """A framework believes that what it saved stays: neither a budget nor time takes anything of it."""
        for prompt in ("one", "two"):
            asyncio.run(agent.turn("c", prompt))
        session = store.get(agent.key("c"))
        count = len(list(session.history()))
        assert {info.profile for info in store.sessions()} == {"archive"}
        store.prune()
        store.clean()
        assert session.info.stored_count == session.info.last_seq == count

    def test_rules_of_retention_apply(self, store: stepkeep.Store, url: str) -> None:
        """Pruning takes old checkpoints and nothing of the conversation."""
        agent = self.make(store, {"keep_last": 2})
        for prompt in ("one", "two", "three"):
            asyncio.run(agent.turn("c", prompt))
        session = store.get(agent.key("c"))
        session.prune()
        assert len(list(session.history())) == 2
        with stepkeep.open(url) as again:
            assert asyncio.run(self.make(again).turn("c", "four")) == ["one", "two", "three", "four"]

    def test_a_cancelled_caller_leaves_no_half_save(self, agent: Any, store: stepkeep.Store) -> None:
        """The cancellation arrives when the save is settled, so nothing lands after what comes next."""
        if not self.IS_AWAITED:
            return  # a call cannot be cancelled
        asyncio.run(agent.turn("c", "one"))
        begun, released = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            begun.set()
            released.wait()

        async def cancel() -> None:
            task = asyncio.ensure_future(agent.write("c", "two"))
            await asyncio.to_thread(begun.wait)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)  # a task that takes its cancellation has ended by now
            assert not task.done()
            released.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        store.engine.on_append.append(hold)
        asyncio.run(cancel())
        store.engine.on_append.remove(hold)
        assert "two" in asyncio.run(agent.turn("c", "three"))
        assert store.verify().is_intact


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all those it comes from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
