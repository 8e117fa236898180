"""Queries answered in plain Python: what `HeaderQuery` and `SessionQuery` mean, condition by condition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stepkeep.model import Header, Session
from stepkeep.storage.port import HeaderQuery, SessionQuery

T = TypeVar("T")
Place = tuple[int, str]


def is_wanted_session(session: Session, query: SessionQuery) -> bool:
    return (
        _is(query.project, session.project)
        and _is(query.workflow, session.workflow)
        and (query.statuses is None or session.status in query.statuses)
        and session.key.startswith(query.key_prefix or "")
        and (query.updated_before_us is None or session.updated_us < query.updated_before_us)
    )


def is_wanted_header(header: Header, query: HeaderQuery) -> bool:
    """Whether the header meets every condition on itself. Bounds of `seq` and time belong to the range."""
    return (
        _is(query.branch, header.branch)
        and _is(query.external_id, header.external_id)
        and _is(query.step, header.step)
        and _is(query.status, header.status)
        and (query.tag is None or query.tag in header.tags)
        and (query.ids is None or header.id in query.ids)
        and header.id.startswith(query.id_prefix or "")
        and _is_within(header.seq, query.min_seq, query.max_seq)
        and _is_within(header.time_us, query.since_us, query.until_us)
    )


def page(
    found: Iterable[tuple[Place, T]], *, newest_first: bool, after: Place | None, limit: int | None
) -> list[T]:
    """What was found, in the order of its places, behind `after`, at most `limit`."""
    ordered = sorted(found, key=lambda item: item[0], reverse=newest_first)
    if after is not None:
        ordered = [
            (place, value) for place, value in ordered if (place < after if newest_first else place > after)
        ]
    return [value for _, value in ordered[:limit]]


def _is(wanted: object, found: object) -> bool:
    return wanted is None or wanted == found


def _is_within(number: int, first: int | None, last: int | None) -> bool:
    return (first is None or first <= number) and (last is None or number <= last)
