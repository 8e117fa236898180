"""A server on loopback that answers like OpenAI and Anthropic, so that their real clients run without a network.

The model asks for the weather in Oslo, then tells what the tool gave. `requests` has the paths it was asked at.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CITY = {"city": "Oslo"}


class Models(ThreadingHTTPServer):
    """Answers on a free port; `environment` is what the clients read."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.requests: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server_port}"
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
        }


class _Answers(BaseHTTPRequestHandler):
    server: Models

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(self.path)
        last = asked["messages"][-1]
        answer = _openai(last) if self.path == "/v1/chat/completions" else _anthropic(last)
        data = json.dumps({"id": "1", "model": asked["model"], **answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Tests read what programs print."""


def _openai(last: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": f"It is {last['content']}."}
    if last["role"] != "tool":
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": json.dumps(CITY)},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"object": "chat.completion", "created": 1, "choices": [choice]}


def _anthropic(last: dict[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "weather", "input": CITY}
    if not isinstance(last["content"], str):
        block = {"type": "text", "text": f"It is {last['content'][0]['content']}."}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"type": "message", "role": "assistant", "content": [block], "stop_reason": None, "usage": usage}


@contextmanager
def running() -> Iterator[Models]:
    """A server that answers until the block ends."""
    with Models() as models:
        thread = threading.Thread(target=models.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield models
        finally:
            models.shutdown()
            thread.join()
