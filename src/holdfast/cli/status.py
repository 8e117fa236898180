"""`holdfast status`."""

from __future__ import annotations

import click

from holdfast import operations
from holdfast.cli.app import Command, Settings, settings_of
from holdfast.cli.naming import optional_session, session_argument, session_option
from holdfast.cli.printing import clean, count, lines, moment, size
from holdfast.operations import SessionStatus, StoreStatus
from holdfast.storage.port import Usage

EXAMPLE = """\
holdfast status
holdfast status research-42"""


@click.command("status", cls=Command, example=EXAMPLE)
@session_argument()
@session_option()
@settings_of
def status(settings: Settings, session: str | None, session_option: str | None) -> None:
    """Show what the store holds and takes, or where SESSION stands."""
    key = optional_session(session, session_option)
    with operations.open_store(settings.store) as store:
        if key is None:
            whole = operations.store_status(store)
            settings.show(whole, _print_store)
            return
        one = operations.session_status(store, key)
    settings.show(one, _print_session)


def _print_store(status: StoreStatus) -> None:
    by_status = ", ".join(f"{number} {name}" for name, number in status.statuses.items() if number)
    facts = {
        "store": status.store,
        "sessions": f"{status.usage.sessions:,}" + (f" ({by_status})" if by_status else ""),
        **_usage_facts(status.usage),
        "on disk": size(status.usage.store_bytes),
    }
    _print_facts(facts)


def _print_session(status: SessionStatus) -> None:
    session, latest = status.session, status.latest
    facts = {
        "session": session.key,
        "status": f"{session.status}: {session.error}" if session.error else session.status,
        "project": session.project or "",
        "profile": session.profile,
        "branch": session.branch,
        "created": f"{moment(session.created)} UTC",
        "updated": f"{moment(session.updated)} UTC",
        "latest": "" if latest is None else f"{latest.id} (#{latest.seq})",
        "message": "" if latest is None else latest.message,
        **_usage_facts(status.usage),
    }
    _print_facts(facts)


def _usage_facts(usage: Usage) -> dict[str, str]:
    return {
        "checkpoints": f"{usage.checkpoints:,}",
        "bodies": f"{size(usage.body_bytes)} in {count(usage.bodies, 'record')}",
        "blobs": f"{size(usage.blob_bytes)} in {count(usage.blobs, 'record')}" if usage.blobs else "",
    }


def _print_facts(facts: dict[str, str]) -> None:
    lines(f"{name + ':':<13}{clean(text)}" for name, text in facts.items() if text)


COMMANDS = {"status": status}
