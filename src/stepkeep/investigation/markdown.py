"""An investigation as Markdown, for a person; pure."""

from __future__ import annotations

import re
from typing import Final

from stepkeep.investigation.state import InvestigationState
from stepkeep.model import from_us
from stepkeep.text import count

_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>#|!~])")
_FENCE: Final = re.compile(r"`{3,}")
MAX_OUTPUT: Final = 2000


def markdown(state: InvestigationState) -> str:
    """The report. Texts are escaped: whatever was noted, it stays text."""
    sections = {
        "Hypotheses": _hypotheses(state),
        "Beliefs": _beliefs(state),
        "Contradictions": _contradictions(state),
        "Knowledge gaps": _gaps(state),
        "Verifications": _verifications(state),
        "Experiments": _experiments(state),
        "Notes": [f"- {_time(each.time_us)} {escaped(each.content)}" for each in state.notes],
    }
    lines = _head(state)
    for title, found in sections.items():
        if found:
            lines += ["", f"## {title}", "", *found]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """One line of text that Markdown shows as it is."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()))


def _time(time_us: int) -> str:
    return f"{from_us(time_us):%Y-%m-%d %H:%M:%S} UTC"


def _head(state: InvestigationState) -> list[str]:
    metrics = state.metrics
    return [
        f"# Investigation {escaped(state.session_id)}",
        "",
        f"Started {_time(state.started_us)}, on branch {escaped(state.current_branch)}.",
        "",
        f"- {count(metrics.checkpoints_created, 'checkpoint')}",
        f"- {count(metrics.hypotheses_tested, 'hypothesis', 'hypotheses')} tested",
        f"- {count(metrics.verifications_run, 'verification')} run",
        f"- {count(metrics.gaps_filled, 'gap')} filled",
        f"- {count(round(metrics.time_in_debugging_seconds / 60), 'minute')} of debugging",
    ]


def _hypotheses(state: InvestigationState) -> list[str]:
    lines = []
    for each in state.hypotheses:
        lines.append(
            f"- **{each.status}** ({each.confidence:.0%}) {escaped(each.description)} · {escaped(each.id)}"
        )
        for evidence in state.evidence:
            if evidence.hypothesis == each.id:
                source = f" (from {escaped(evidence.source)})" if evidence.source else ""
                lines.append(f"  - {evidence.strength:+.1f} {escaped(evidence.description)}{source}")
    return lines


def _beliefs(state: InvestigationState) -> list[str]:
    supports: dict[str, list[str]] = {}
    for edge in state.belief_dependencies:
        supports.setdefault(edge.to_id, []).append(escaped(edge.from_id))
    lines = []
    for each in state.beliefs:
        rests = f", rests on {', '.join(supports[each.id])}" if each.id in supports else ""
        lines.append(
            f"- {escaped(each.statement)} ({each.kind}, {each.confidence:.0%}{rests}) · {escaped(each.id)}"
        )
    return lines


def _contradictions(state: InvestigationState) -> list[str]:
    statements = {belief.id: belief.statement for belief in state.beliefs}
    return [
        f"- **{each.status}**, {each.severity}: “{escaped(statements.get(each.first, each.first))}” against "
        f"“{escaped(statements.get(each.second, each.second))}”"
        for each in state.contradictions
    ]


def _gaps(state: InvestigationState) -> list[str]:
    lines = []
    for each in state.gaps:
        answer = f" — {escaped(each.answer)}" if each.answer else ""
        lines.append(
            f"- **{each.status}** ({each.criticality}) {escaped(each.question)}{answer} · {escaped(each.id)}"
        )
    return lines


def _verifications(state: InvestigationState) -> list[str]:
    lines = []
    for each in state.verification_results:
        code = "" if each.exit_code is None else f", exit code {each.exit_code}"
        lines.append(f"- **{each.status}** {escaped(each.plan)} ({each.duration_ms} ms{code})")
        if each.output.strip() and each.status != "passed":
            output = _FENCE.sub("``", each.output[-MAX_OUTPUT:])
            lines += ["", "  ```text", *(f"  {line}" for line in output.splitlines()), "  ```", ""]
    return lines


def _experiments(state: InvestigationState) -> list[str]:
    lines = []
    for each in state.branches:
        if each.parent is None:
            continue
        about = f": {escaped(each.description)}" if each.description else ""
        results = f" — {escaped(each.results)}" if each.results else ""
        lines.append(f"- **{each.status}** {escaped(each.name)}{about}{results}")
    return lines
