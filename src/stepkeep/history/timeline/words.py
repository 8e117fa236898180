"""The words of a timeline: texts made safe and cut to a width, sizes, spans, and what a row says. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from stepkeep.history.timeline.model import Entry, Fold, Gap, Rest, Timeline
from stepkeep.model import Branch, BranchState, Session, from_us

_JOINERS: Final = "\u200c\u200d"
_WIDE_EMOJI: Final = "\ufe0f"


def safe(text: str) -> str:
    """One line of text, with everything that is not to be seen written as an escape."""
    return text if text.isprintable() else "".join(map(_safe, text))


def _safe(char: str) -> str:
    if char.isprintable() or char in _JOINERS:
        return char
    if unicodedata.category(char) == "Zs":
        return " "
    return char.encode("unicode_escape", "surrogatepass").decode()


def plain(text: str) -> str:
    """The same in ASCII."""
    return text.encode("ascii", "backslashreplace").decode()


def columns(text: str) -> int:
    """How many columns of a terminal a safe text takes, at most."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(maxsize=4096)
def _columns(char: str) -> int:
    if char == _WIDE_EMOJI:
        return 1  # it can make the character before it wide
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, room: int, *, more: str = "…") -> str:
    """As much of a safe text as fits into so many columns; `more` ends what was cut off."""
    if len(text) <= room and columns(text) <= room:
        return text
    room -= columns(more)
    if room < 0:
        return ""
    taken = 0
    for at, char in enumerate(text):
        taken += _columns(char)
        if taken > room:
            return text[:at] + more
    return text


# --- numbers ---------------------------------------------------------------------------------------------------


def size(count: int) -> str:
    """`950B`, `1.5KB`, `950KB`, `1.2MB`."""
    if count < 1000:
        return f"{count}B"
    if count < 9950:
        return f"{count / 1e3:.1f}KB"
    if count < 999_500:
        return f"{count / 1e3:.0f}KB"
    return f"{count / 1e6:.1f}MB" if count < 999_950_000 else f"{count / 1e9:.1f}GB"


def span(length_us: int) -> str:
    """`45 s`, `20 min`, `3 h 20 min`, `2 d 3 h`; empty for less than a second."""
    seconds = length_us // 1_000_000
    if seconds < 120:
        return f"{seconds} s" if seconds else ""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days:,} d {hours % 24} h" if hours % 24 else f"{days:,} d"


def number(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def day_and_time(time_us: int, *, is_short: bool) -> str:
    """A time in UTC: to the second as a ref understands it, or short, without the year."""
    when = from_us(time_us)
    return f"{when:%m-%d %H:%M}" if is_short else f"{when:%Y-%m-%d %H:%M:%S}"


# --- sentences -------------------------------------------------------------------------------------------------


def title(timeline: Timeline) -> str:
    """What the session is and holds, in one line."""
    session = timeline.session
    total = (
        number(timeline.total, "checkpoint") if timeline.total or timeline.damaged else "no checkpoint yet"
    )
    facts = [session.status.value, total]
    if len(timeline.branches) > 1:
        facts.append(number(len(timeline.branches), "branch", "branches"))
    if timeline.pruned:
        facts.append(f"{timeline.pruned:,} pruned")
    if timeline.damaged:
        facts.append(f"{len(timeline.damaged):,} damaged")
    if timeline.total:
        facts.append(f"{size(timeline.stored_bytes)} stored")
    return ", ".join(facts)


def fold_text(fold: Fold, *, names_branch: bool) -> str:
    """`214 automatic, steps 18–231, 3 h 20 min, 1.2MB stored`."""
    what = "automatic" if fold.is_match else "left out"
    return ", ".join([f"{fold.count:,} {what}{_on(fold, names_branch)}", *_fold_facts(fold)])


def _on(fold: Fold, names_branch: bool) -> str:
    return f" on {cut(safe(fold.branch), 24)}" if names_branch and not fold.is_match else ""


def _fold_facts(fold: Fold) -> Iterator[str]:
    if fold.pruned:
        yield f"{fold.pruned:,} pruned"
    if fold.damaged:
        yield f"{fold.damaged:,} damaged"
    if fold.first_step is not None:
        is_one = fold.first_step == fold.last_step
        yield f"step {fold.first_step}" if is_one else f"steps {fold.first_step}–{fold.last_step}"
    if length := span(fold.last_us - fold.first_us):
        yield length
    yield f"{size(fold.stored_bytes)} stored"


def gap_text(gap: Gap) -> str:
    if gap.first_seq == gap.last_seq:
        return f"#{gap.first_seq} pruned"
    return f"{gap.count:,} pruned, #{gap.first_seq}–#{gap.last_seq}"


def rest_text(rest: Rest) -> str:
    return f"{rest.count:,} older"


def left_out_text(timeline: Timeline) -> str:
    left_out = f"{number(timeline.left_out, 'checkpoint')} left out"
    return f"{left_out} that nothing here descends from" if timeline.rows else f"nothing matches: {left_out}"


def branch_labels(entry: Entry, branches: dict[str, Branch], session: Session, most: int = 3) -> list[str]:
    """The branches that stand at a checkpoint, the current one first; those that are closed with their state."""
    names = sorted(entry.heads, key=lambda name: name != session.branch)
    labels = []
    for name in names[:most]:
        record = branches.get(name)
        state = "" if record is None or record.state is BranchState.OPEN else f" {record.state.value}"
        labels.append(f"{cut(safe(name), 24)}{state}")
    return labels + ([f"+{len(names) - most:,}"] if len(names) > most else [])


def tag_labels(entry: Entry, most: int = 3) -> list[str]:
    tags = entry.header.tags
    labels = [cut(safe(tag), 20) for tag in tags[:most]]
    return labels + ([f"+{len(tags) - most:,}"] if len(tags) > most else [])
