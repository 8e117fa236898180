"""A research agent whose network fails in step 2, and which goes on later:

    python examples/research_agent.py --down      # step 1 is done, step 2 fails
    python examples/research_agent.py --resume    # step 1 is skipped, step 2 tried again, step 3 done

Its data comes from a small server on this machine; with `--down` that server cannot answer for revenues. The store is
`research.db`, or the file that is named.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import stepkeep
from stepkeep import PlanStep, StepContext

REVENUE = {"CompanyA": 120, "CompanyB": 95, "CompanyC": 143}
PLAN = [
    PlanStep("1", "Identify competitors from the industry database", "competitors"),
    PlanStep("2", "Fetch the Q4 revenue of each competitor", "revenue", dependencies=("1",)),
    PlanStep("3", "Compile a comparison report", "report", dependencies=("2",)),
]


class Api:
    """What the agent can do. The answers come from `url`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, context: StepContext) -> Any:
        print(f"step {context.step.id}: {context.step.description}", flush=True)
        if context.step.action == "competitors":
            return self._get("/competitors")
        if context.step.action == "revenue":
            return {name: self._get(f"/revenue/{name}") for name in context.outputs["1"]}
        ranking = sorted(context.outputs["2"].items(), key=lambda pair: -pair[1])
        return "\n".join(f"{name}: {revenue} million" for name, revenue in ranking)

    def _get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=10) as answer:
            return json.load(answer)


@contextmanager
def server(*, is_down: bool) -> Iterator[str]:
    """The industry database, on a free port of the loopback address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if is_down and self.path.startswith("/revenue/"):
                self.send_error(504, "API timeout")
                return
            found = list(REVENUE) if self.path == "/competitors" else REVENUE[self.path.rpartition("/")[2]]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def main(path: str, *, is_down: bool, resume: bool) -> int:
    query = "Find all competitors and their quarterly revenue"
    with server(is_down=is_down) as url, stepkeep.open(path) as store:
        result = store.execute("research", PLAN, Api(url), query=query, resume=resume, project="market")
    print(f"{result.status}: {result.steps_run} done now, {result.steps_recovered} done before")
    print(result.output("3") if result.success else f"error: {result.error}")
    return 0 if result.success else 1


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    flags = set(sys.argv[1:])
    sys.exit(
        main(paths[0] if paths else "research.db", is_down="--down" in flags, resume="--resume" in flags)
    )
