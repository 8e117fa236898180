"""A drawing of one workload over its steps: bytes on disk and time of a save, all subjects, as SVG.

Colours follow the reader's light or dark preference, and each line carries its own name and dashes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.growth import Result
from benchmarks.report import size

_WIDTH: Final = 920
_HEIGHT: Final = 360
_PANEL_WIDTH: Final = 290
_PANEL_HEIGHT: Final = 240
_TOP: Final = 60
_LEFTS: Final = (60, 520)

_CLASSES: Final = {"stepkeep": "a", "bare insert": "b", "json file": "c", "SqliteSaver": "d"}
_STYLE: Final = """
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 14px; font-weight: 600; }
  .faint { fill: #57606a; font-size: 11px; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .a { stroke: #0969da; stroke-width: 3; } .b { stroke: #57606a; stroke-dasharray: 2 3; }
  .c { stroke: #1a7f37; stroke-dasharray: 7 3; } .d { stroke: #bc4c00; stroke-dasharray: 10 3 2 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .faint { fill: #9198a1; } .grid { stroke: #3d444d; }
    .a { stroke: #58a6ff; } .b { stroke: #9198a1; } .c { stroke: #3fb950; } .d { stroke: #f0883e; }
  }
"""


@dataclass(frozen=True)
class _Series:
    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class _Panel:
    """A frame with steps to the right and a logarithmic scale upward."""

    left: int
    steps: int
    lowest: int
    highest: int

    def x(self, step: float) -> float:
        return self.left + _PANEL_WIDTH * step / self.steps

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.lowest) / (self.highest - self.lowest)
        return _TOP + _PANEL_HEIGHT * (1 - share)


def write_svg(results: Sequence[Result], machine: dict[str, Any], path: Path) -> None:
    """Draw the results of one workload, one number of steps, all subjects."""
    sizes = [_Series(r.subject, [(step, max(1, count)) for step, count in r.size_points]) for r in results]
    saves = [_Series(r.subject, [(step, s * 1000) for step, s in r.save_points]) for r in results]
    steps = results[0].steps
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>Bytes on disk and time of a save over {steps} steps</title>",
        f"<style>{_STYLE}</style>",
        *_panel("Bytes on disk", _LEFTS[0], steps, sizes, size),
        *_panel("Time of a save (median)", _LEFTS[1], steps, saves, lambda ms: f"{ms:g} ms"),
        _text(_LEFTS[0], _HEIGHT - 10, f"{machine['date']}, {machine['cores']} × {machine['cpu']}", "faint"),
        "</svg>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _panel(
    title: str, left: int, steps: int, series: Sequence[_Series], label: Callable[[float], str]
) -> list[str]:
    values = [value for one in series for _, value in one.points]
    lowest = math.floor(math.log10(min(values)))
    panel = _Panel(left, steps, lowest, max(math.ceil(math.log10(max(values))), lowest + 1))
    parts = [_text(left, _TOP - 20, title, "title")]
    for power in range(panel.lowest, panel.highest + 1):
        y = panel.y(10.0**power)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{_PANEL_WIDTH}"/>')
        parts.append(_text(left - 6, y + 4, label(10.0**power), "faint", anchor="end"))
    for step in (0, steps // 2, steps):
        parts.append(_text(panel.x(step), _TOP + _PANEL_HEIGHT + 18, f"{step:,}", "faint", anchor="middle"))
    parts.append(_text(left + _PANEL_WIDTH / 2, _TOP + _PANEL_HEIGHT + 34, "steps", "faint", anchor="middle"))
    return parts + _lines(panel, series)


def _lines(panel: _Panel, series: Sequence[_Series]) -> list[str]:
    parts = []
    for one in series:
        path = " ".join(f"{panel.x(step):.1f},{panel.y(value):.1f}" for step, value in one.points)
        parts.append(f'<polyline class="line {_CLASSES[one.name]}" points="{path}"/>')
    ends = sorted(((panel.y(one.points[-1][1]), one.name) for one in series), key=lambda end: end[0])
    lowest = 0.0
    for y, name in ends:
        lowest = max(y, lowest + 15)  # names of lines that end close together are moved apart
        x = panel.left + _PANEL_WIDTH + 8
        parts.append(f'<path class="line {_CLASSES[name]}" d="M{x} {lowest:.1f}h22"/>')
        parts.append(_text(x + 28, lowest + 4, name))
    return parts


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
