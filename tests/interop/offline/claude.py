"""An agent of the Claude Agent SDK. The SDK starts a program that stands for `claude`."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import stat
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, project_key_for_directory, query

from stepkeep import RetentionRules, Store
from stepkeep.adapters.claude import StepkeepSessionStore

ROOT = Path(__file__).parents[3]


class Agent:
    """`cwd` is where it works; the transcripts on disk are in a folder that only this object has."""

    def __init__(
        self,
        store: Store,
        retention: RetentionRules | None = None,
        *,
        cwd: Path = ROOT,
        workspace: Path | None = None,
    ) -> None:
        self.sessions = StepkeepSessionStore(store, retention=retention, workspace=workspace)
        self._cwd = cwd
        self._folder = Path(tempfile.mkdtemp(prefix="stepkeep-claude-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        self._program = self._folder / "claude"
        self._program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m tests.interop.offline.fake_claude "$@"\n'
        )
        self._program.chmod(self._program.stat().st_mode | stat.S_IXUSR)

    def id(self, conversation: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, conversation))

    def key(self, conversation: str) -> str:
        return f"claude:{project_key_for_directory(self._cwd)}/{self.id(conversation)}"

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        id = self.id(conversation)
        project = project_key_for_directory(self._cwd)
        is_new = await self.sessions.load({"project_key": project, "session_id": id}) is None
        return (await self.ask(prompt, **{"session_id" if is_new else "resume": id}))[0]

    async def write(self, conversation: str, prompt: str) -> None:
        """Save a prompt as the SDK does at the end of a turn."""
        key: Any = {"project_key": project_key_for_directory(self._cwd), "session_id": self.id(conversation)}
        entry: Any = {"type": "user", "uuid": prompt, "message": {"role": "user", "content": prompt}}
        await self.sessions.append(key, [entry])

    async def ask(self, prompt: str, **options: Any) -> tuple[list[str], str]:
        """What the answer is, and the id of the session."""
        given: dict[str, Any] = {"session_store": self.sessions, "cwd": self._cwd} | options
        python_path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        env = {"CLAUDE_CONFIG_DIR": str(self._folder), "PYTHONPATH": python_path}
        async for message in query(
            prompt=prompt, options=ClaudeAgentOptions(cli_path=self._program, env=env, **given)
        ):
            if isinstance(message, ResultMessage):
                assert message.result is not None
                answer, session = json.loads(message.result), message.session_id
        return answer, session
