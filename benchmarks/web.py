"""What the pages of `stepkeep ui` take with much to show: a store of 10,000 sessions, a timeline of 10,000
checkpoints, and a state of 200 MB. The server by its answers, the pages in a browser until they show their rows."""

from __future__ import annotations

import http.client
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import stepkeep
from benchmarks.cold import environment
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import say

ANSWER_MS: Final = 150
SHOWN_MS: Final = 1000
TIMES_THE_STATE: Final = 2.0
ITEM_BYTES: Final = 4000
LONG: Final = "long"
LARGE: Final = "large"
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


class Sizes(NamedTuple):
    """How much there is to show, and how often each is asked for."""

    sessions: int
    checkpoints: int
    state_bytes: int
    repeats: int


FULL: Final = Sizes(10_000, 10_000, 200_000_000, 9)
QUICK: Final = Sizes(50, 50, 1_000_000, 2)


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001  (it has no peers)
    """The median of each answer in a store that changes between them, so that none is remembered."""
    sizes = QUICK if quick else FULL
    url = f"sqlite:{directory / 'web.db'}"
    say("web: filling the store")
    _fill(url, sizes)
    with stepkeep.open(url) as store, _Server.started(url) as server:

        def change() -> None:
            store.session(LONG).save({"n": -1})

        say("web: answers")
        sessions = server.answers("/api/sessions", sizes.repeats, change)
        folded = server.answers(f"/api/timeline?key={LONG}&fold=1", sizes.repeats, change)
        every = server.answers(f"/api/timeline?key={LONG}", sizes.repeats, change)
        say("web: pages")
        shown = _shown(server, sizes.repeats)
    with _Server.started(url) as server:
        say("web: a large state")
        server.answers("/api/sessions", 1)
        before = server.peak_bytes()
        root = server.answers(f"/api/outline?key={LARGE}", 1)
        grown = (server.peak_bytes() - before) / sizes.state_bytes
    answers = {
        f"first page of {sizes.sessions:,} sessions": sessions,
        f"timeline of {sizes.checkpoints:,} checkpoints": folded,
        "the same, every checkpoint": every,
        f"root of a state of {sizes.state_bytes // 1_000_000:,} MB, not read before": root,
    }
    return Part(
        tables=[
            Table(
                "answers of stepkeep ui (milliseconds)",
                ["answer", "p50", "worst", "CPU"],
                [
                    [
                        name,
                        f"{median(each.taken) * 1e3:.0f}",
                        f"{max(each.taken) * 1e3:.0f}",
                        f"{each.cpu * 1e3:.0f}",
                    ]
                    for name, each in answers.items()
                ],
            ),
            Table(
                "pages in Chromium, until they show it (milliseconds)",
                ["page", "first paint", "shown"],
                [[name, f"{paint:.0f}", f"{all_:.0f}"] for name, (paint, all_) in shown.items()],
            ),
        ],
        rows=[
            *(
                Row(f"{name}: ms of the server", median(each.taken) * 1e3, ANSWER_MS)
                for name, each in list(answers.items())[:3]
            ),
            *(
                Row(f"{name}: ms to the first paint", shown[name][0] if shown else None, SHOWN_MS)
                for name in ("sessions", "timeline")
            ),
            Row(f"{list(answers)[3]}: ms", root.taken[0] * 1e3, SHOWN_MS),
            Row("memory of the server for it ÷ the state", grown, TIMES_THE_STATE),
        ],
    )


def _fill(url: str, sizes: Sizes) -> None:
    texts = random.Random(7)
    with stepkeep.open(url) as store:
        items = [texts.randbytes(ITEM_BYTES // 2).hex() for _ in range(sizes.state_bytes // ITEM_BYTES)]
        store.session(LARGE, profile="archive").save({"items": items, "note": "x"})
        del items
        for number in range(sizes.sessions):
            session = store.session(f"session-{number}", project=f"project-{number % 7}")
            session.save({"n": number}, message=f"message {number}", tags=["one"], wait=False)
        long = store.session(LONG, profile="archive")
        for number in range(sizes.checkpoints):
            long.save({"n": number}, message="" if number % 10 else f"step {number}", wait=False)


class _Answers(NamedTuple):
    """The seconds of each answer, and the CPU seconds of the server for one of them."""

    taken: list[float]
    cpu: float


class _Server:
    """A process of `stepkeep ui`, asked as a browser asks."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        place = urlsplit(address)
        self._connection = http.client.HTTPConnection("127.0.0.1", place.port or 0)
        self._connection.request("GET", f"/?{place.query}")
        answer = self._connection.getresponse()
        answer.read()
        self.cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]

    @classmethod
    @contextmanager
    def started(cls, url: str) -> Iterator[_Server]:
        command = [sys.executable, "-m", "stepkeep", "ui", "--no-open", "--store", url]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield cls(process, process.stdout.readline().strip())
            finally:
                process.terminate()

    def answers(self, path: str, repeats: int, change: Callable[[], None] = lambda: None) -> _Answers:
        taken, cpu = [], 0.0
        for _ in range(repeats):
            change()
            used, start = self._cpu_seconds(), perf_counter()
            self._connection.request("GET", path, headers={"Cookie": self.cookie})
            answer = self._connection.getresponse()
            answer.read()
            taken.append(perf_counter() - start)
            cpu += self._cpu_seconds() - used
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status}")
        return _Answers(taken, cpu / repeats)

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _shown(server: _Server, repeats: int) -> dict[str, tuple[float, float]]:
    """The median milliseconds of pages to their first paint, and until their rows are there; nothing without a
    browser."""
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        say(f"web: no pages, because none of these is here: {', '.join(_BROWSERS)}")
        return {}
    from playwright.sync_api import sync_playwright

    base = server.address.partition("/?")[0]
    name, _, value = server.cookie.partition("=")
    pages = {"sessions": ("", ".session-key"), "timeline": (f"s/{LONG}", ".row-main")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": name, "value": value, "url": base}])
        found = {
            each: _medians([_open(context, f"{base}/#/{where}", row) for _ in range(repeats)])
            for each, (where, row) in pages.items()
        }
        browser.close()
    return found


def _open(context: Any, address: str, row: str) -> tuple[float, float]:
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(row)
    paint, shown = page.evaluate(
        "() => [performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now()]"
    )
    page.close()
    return paint, shown


def _medians(samples: list[tuple[float, float]]) -> tuple[float, float]:
    paints, shown = zip(*samples, strict=True)
    return median(paints), median(shown)
