"""`stepkeep status`."""

from __future__ import annotations

from datetime import datetime

import click

from stepkeep import api
from stepkeep.api import NextClean, SessionCleanup, SessionStatus, SessionUsage, StoreStatus, Usage
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import optional_session, session_argument, session_option
from stepkeep.cli.printing import lines, moment, note, ratio, table
from stepkeep.text import clean, count, size

EXAMPLE = """\
stepkeep status
stepkeep status research-42"""


@click.command("status", cls=Command, example=EXAMPLE)
@session_argument()
@session_option()
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Name the N largest sessions.  [default: 10]"
)
@settings_of
def status(settings: Settings, session: str | None, session_option: str | None, limit: int | None) -> None:
    """Show what the store holds and takes, and what the next clean would remove; or where SESSION stands.

    Stored is what bodies take on the disk. Ratio says how many times smaller that is than the states.
    """
    key = optional_session(session, session_option)
    if key is not None and limit is not None:
        raise click.UsageError("--limit is about the whole store: leave it or the session out.")
    with api.open(settings.store, create=False) as store:
        if key is None:
            whole = store.status() if limit is None else store.status(limit=limit)
            settings.show(whole, _print_store)
            if trouble := api.hook_trouble(store.engine.clock()):
                note(f"warning: {trouble}")
            return
        one = store.get(key).status()
    settings.show(one, _print_session)


def _print_store(status: StoreStatus) -> None:
    usage = status.usage
    by_status = ", ".join(f"{number} {name}" for name, number in status.statuses.items() if number)
    facts = {
        "store": status.store,
        "on disk": size(usage.store_bytes),
        "sessions": f"{usage.sessions:,}" + (f" ({by_status})" if by_status else ""),
        **_usage_facts(usage),
        "oldest": _time(status.oldest),
        "newest": _time(status.newest),
        "next clean": _next_clean(status.next_clean),
    }
    _print_facts(facts)
    if status.sessions:
        lines([""])
        _print_sessions(status.sessions)
        more = usage.sessions - len(status.sessions)
        lines([f"... ({more:,} more)"] if more > 0 else [])


def _print_sessions(sessions: tuple[SessionUsage, ...]) -> None:
    table(
        ["stored", "ratio", "checkpoints", "oldest", "status", "session"],
        [
            [
                size(each.stored_bytes),
                ratio(each.ratio),
                f"{each.checkpoints:,}",
                "-" if each.oldest is None else moment(each.oldest),
                each.status,
                each.session,
            ]
            for each in sessions
        ],
        right=["stored", "ratio", "checkpoints"],
    )


def _next_clean(plan: NextClean) -> str:
    if not plan.count:
        return "would remove nothing"
    more = plan.count - len(plan.sessions)
    names = ", ".join(plan.sessions) + (f" and {more:,} more" if more else "")
    return f"would remove {count(plan.count, 'session')}: {names}"


def _print_session(status: SessionStatus) -> None:
    session, latest, takes = status.session, status.latest, status.takes
    facts = {
        "session": session.key,
        "status": f"{session.status}: {session.error}" if session.error else session.status,
        "project": session.project or "",
        "workflow": session.workflow or "",
        "profile": session.profile,
        "branch": session.branch,
        "created": _time(session.created),
        "updated": _time(session.updated),
        "latest": "" if latest is None else f"{latest.id} (#{latest.seq})",
        "message": "" if latest is None else latest.message,
        **_usage_facts(status.usage),
        "states": f"{size(takes.size_bytes)}, {ratio(takes.ratio)} the stored size" if takes.ratio else "",
        "oldest": _time(takes.oldest),
        "prune": ", ".join(status.rules),
        "clean": _cleanup(status.cleanup),
    }
    _print_facts(facts)


def _cleanup(cleanup: SessionCleanup | None) -> str:
    if cleanup is None:
        return "leaves it alone: its profile or policy makes no sense"
    return f"{'would remove it' if cleanup.goes else 'leaves it'}: {cleanup.reason}"


def _usage_facts(usage: Usage) -> dict[str, str]:
    return {
        "checkpoints": f"{usage.checkpoints:,}",
        "bodies": f"{size(usage.body_bytes)} in {count(usage.bodies, 'record')}",
        "hidden": f"{size(usage.hidden_bytes)} of it belong to removed checkpoints that others build upon"
        if usage.hidden_bodies
        else "",
        "blobs": f"{size(usage.blob_bytes)} in {count(usage.blobs, 'record')}" if usage.blobs else "",
    }


def _time(when: datetime | None) -> str:
    return "" if when is None else f"{moment(when)} UTC"


def _print_facts(facts: dict[str, str]) -> None:
    lines(f"{name + ':':<13}{clean(text)}" for name, text in facts.items() if text)


COMMANDS = {"status": status}
