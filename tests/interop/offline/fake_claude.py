"""A program that speaks to the Claude Agent SDK as `claude` does, without a model.

It keeps its transcript as the real one does: below `CLAUDE_CONFIG_DIR`, mirrored to the SDK. A prompt `write NAME TEXT`
writes a file. The answer is all prompts of the conversation so far, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from claude_agent_sdk import project_key_for_directory


def _option(name: str) -> str | None:
    return next((arg.partition("=")[2] for arg in sys.argv if arg.startswith(f"--{name}=")), None)


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


class Conversation:
    """The transcript of the session that the command line names."""

    def __init__(self) -> None:
        home = os.environ.get("CLAUDE_CONFIG_DIR") or str(Path.home() / ".claude")
        self._folder = Path(home, "projects", project_key_for_directory(Path.cwd()))
        self.entries: list[dict[str, Any]] = []
        resumed = _option("resume")
        self.id = resumed or _option("session-id") or str(uuid.uuid4())
        if resumed:
            self._read(self._folder / f"{resumed}.jsonl")
        if "--fork-session" in sys.argv:
            self.id = str(uuid.uuid4())
            self._mirror(self.entries)

    def _read(self, path: Path) -> None:
        last = _option("resume-session-at")
        for line in path.read_text().splitlines():
            self.entries.append(json.loads(line))
            if last and self.entries[-1]["uuid"] == last:
                return

    def add(self, kind: str, content: Any) -> None:
        parent = self.entries[-1]["uuid"] if self.entries else None
        entry = {
            "type": kind,
            "uuid": str(uuid.uuid4()),
            "parentUuid": parent,
            "sessionId": self.id,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "message": {"role": kind, "content": content},
        }
        self.entries.append(entry)
        self._mirror([entry])

    def _mirror(self, entries: list[dict[str, Any]]) -> None:
        path = self._folder / f"{self.id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
        _say(type="transcript_mirror", filePath=str(path), entries=entries)

    def answer(self, prompt: str) -> None:
        self.add("user", prompt)
        if prompt.startswith("write "):
            _, name, text = prompt.split(" ", 2)
            Path(name).write_text(text)
        said = json.dumps([each["message"]["content"] for each in self.entries if each["type"] == "user"])
        self.add("assistant", [{"type": "text", "text": said}])
        _say(
            type="assistant",
            session_id=self.id,
            uuid=self.entries[-1]["uuid"],
            message={"role": "assistant", "model": "fake", "content": [{"type": "text", "text": said}]},
        )
        _say(
            type="result",
            subtype="success",
            is_error=False,
            duration_ms=1,
            duration_api_ms=1,
            num_turns=1,
            session_id=self.id,
            result=said,
        )


def main() -> None:
    if "-v" in sys.argv or "--version" in sys.argv:
        print("99.0.0 (Claude Code)")
        return
    conversation = Conversation()
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            answer = {"subtype": "success", "request_id": message["request_id"], "response": {"commands": []}}
            _say(type="control_response", response=answer)
        elif message["type"] == "user":
            conversation.answer(message["message"]["content"])


if __name__ == "__main__":
    main()
