"""Record how a killed program goes on, as a picture that moves: `python scripts/record_crash.py PICTURE.svg`.

The program is `examples/long_loop.py`, the kill is a SIGKILL, and what is shown was printed at that time.
"""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).parent.parent / "examples" / "long_loop.py"
KILLED_AT = "step 47"
SHOWN = 5
"""How many lines of one start are shown, the last ones."""

LINE, LEFT, WIDTH, PAUSE = 20, 16, 480, 1.0


class Line(NamedTuple):
    at: float
    text: str
    kind: str = "out"


def record() -> list[Line]:
    """What a person at a terminal sees: two starts, the first of them killed."""
    with tempfile.TemporaryDirectory() as folder:
        lines = _start(folder, 0.0, until=KILLED_AT)
        lines.append(Line(lines[-1].at + 0.3, "Killed", "bad"))
        return lines + _start(folder, lines[-1].at + PAUSE)


def _start(folder: str, begin: float, *, until: str | None = None) -> list[Line]:
    """The lines of one start, from `begin` on; it is killed when it has printed `until`."""
    command = [sys.executable, str(PROGRAM)]
    lines, started = [], time.monotonic()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            lines.append(Line(begin + 0.5 + time.monotonic() - started, text.rstrip()))
            if text.rstrip() == until:
                time.sleep(0.03)  # it is saved, and the next one has begun
                process.kill()
                break
    first = [Line(begin, "$ python long_loop.py", "in")]
    if len(lines) <= SHOWN:
        return first + lines
    return [*first, Line(lines[0].at, f"{lines[0].text} … {lines[-SHOWN].text}"), *lines[1 - SHOWN :]]


def picture(lines: list[Line]) -> str:
    """The lines as they come, one below the other; all of them where nothing may move."""
    height = LINE * len(lines) + 2 * LEFT
    rows = "\n".join(
        f'<text class="{line.kind}" x="{LEFT}" y="{LEFT + LINE * number + 14}"'
        f' style="animation-delay:{line.at:.2f}s">{html.escape(line.text)}</text>'
        for number, line in enumerate(lines)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">
<title>A program is killed at step 47; started again, it goes on at step 48</title>
<style>
  rect {{ fill: #0d1117; }}
  text {{ font: 14px ui-monospace, monospace; fill: #c9d1d9; white-space: pre; animation: come 0.01s both; }}
  .in {{ fill: #79c0ff; }} .bad {{ fill: #ff7b72; }}
  @keyframes come {{ from {{ opacity: 0.25; }} to {{ opacity: 1; }} }}
  @media (prefers-reduced-motion: reduce) {{ text {{ animation: none; }} }}
</style>
<rect width="100%" height="100%" rx="8"/>
{rows}
</svg>
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(record()), encoding="utf-8")
