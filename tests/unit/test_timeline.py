"""The timeline as a value, as text and as a picture: layout, folding, filters, hostile texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from stepkeep.history.timeline import CheckpointNode, DamagedNode, FoldNode, GapNode, RestNode, Timeline
from stepkeep.history.timeline.assembly import FOLD_ABOVE, Filter, build
from stepkeep.history.timeline.lanes import strips_of
from stepkeep.history.timeline.svg import picture
from stepkeep.history.timeline.terminal import ASCII, UNICODE, draw
from stepkeep.model import Branch, BranchState, Content, Header, SessionInfo, Status, Trigger, TriggerKind
from stepkeep.storage.port import HeaderRow
from stepkeep.text import clean
from tests.sampling import examples

MINUTE = 60_000_000
START = 1_772_438_400_000_000  # 2026-03-02 08:00 UTC
MANUAL = Trigger(TriggerKind.MANUAL)


def header(seq: int, parents: Iterable[int] | None = None, **fields: Any) -> Header:
    """Checkpoint number `seq`, saved in that minute; its parent is the one before unless told otherwise."""
    parents = range(seq - 1, seq) if parents is None and seq > 1 else parents or ()
    values: dict[str, Any] = {
        "branch": "main",
        "time_us": START + seq * MINUTE,
        "contents": {"state": Content("d", 1000 * seq, "json")},
        "step": seq,
    }
    return Header(
        v=1,
        id=f"c{seq}",
        session="u",
        seq=seq,
        parents=tuple(f"c{each}" for each in parents),
        **values | fields,
    )


def branch(name: str, head: int | None, fork: int | None = None, **fields: Any) -> Branch:
    return Branch(
        name=name,
        created_us=0,
        head=None if head is None else f"c{head}",
        head_seq=head or 0,
        fork=None if fork is None else f"c{fork}",
        fork_seq=fork or 0,
        **{"fork_branch": None if fork is None else "main"} | fields,
    )


def session(*, current: str = "main", gaps: Sequence[tuple[int, int]] = ()) -> SessionInfo:
    return SessionInfo(uid="u", key="run", created_us=0, updated_us=0, branch=current, gaps=tuple(gaps))


def timeline(
    headers: Sequence[Header],
    branches: Sequence[Branch] | None = None,
    *,
    current: str = "main",
    gaps: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> Timeline:
    if branches is None:
        branches = [branch("main", max((each.seq for each in headers), default=None))]
    return build(session(current=current, gaps=gaps), branches, headers, **options)


def lanes(found: Timeline) -> int:
    return strips_of(found, most=1_000_000)[0]


def drawn(found: Timeline, **options: Any) -> list[str]:
    """The graph: each line up to the number of its checkpoint, or with all its words if it is none."""
    graph = 2 * lanes(found)
    lines = draw(found, width=200, **options)[2:]
    return [line[:graph] + re.sub(r"^ *(\d+)  .*", r"\1", line[graph:]) for line in lines]


# --- layout ----------------------------------------------------------------------------------------------------


def test_a_straight_history_is_one_lane() -> None:
    """Checkpoints without branches stand below each other, with all their facts."""
    found = timeline(
        [
            header(1),
            header(2, trigger=MANUAL, tags=("plan",), message="plan made"),
            header(3, status=Status.FAILED),
        ]
    )
    assert draw(found, width=80) == [
        "run: in_progress, 3 checkpoints, 0B stored",
        "  SEQ TIME (UTC)  STEP  SIZE STORED WHY",
        "✗   3 03-02 08:03    3 3.0KB     0B auto   failed [main] ◀ current",
        "●   2 03-02 08:02    2 2.0KB     0B manual tag:plan plan made",
        "○   1 03-02 08:01    1 1.0KB     0B auto",
    ]
    assert draw(found, width=100)[-1] == "○   1 03-02 08:01:00    1 1.0KB     0B auto"
    assert draw(found, width=120)[-1] == "○   1  2026-03-02 08:01:00     1  1.0KB      0B  auto"


def test_a_key_and_the_task_of_a_coding_agent_are_told_whole() -> None:
    """A key is never cut for what stands behind it, and what a coding agent works on is said below it."""
    known = {"client": "claude-code", "task_summary": "Fix the login bug"}
    found = timeline([header(1), header(2, metadata=known)])
    found = msgspec.structs.replace(found, session="claude-code:" + "0" * 36)
    assert draw(found, width=60)[:3] == [
        found.session,
        "in_progress, 2 checkpoints, 0B stored",
        "Fix the login bug",
    ]
    assert draw(found, width=200)[0] == f"{found.session}: in_progress, 2 checkpoints, 0B stored"


def _forked() -> Timeline:
    return timeline(
        _forked_headers(),
        [branch("main", 5), branch("side", 6, 2)],
    )


def _forked_headers() -> list[Header]:
    return [
        header(1),
        header(2),
        header(3),
        header(4, [2], branch="side"),
        header(5, [3]),
        header(6, [4], branch="side"),
    ]


def test_a_branch_leaves_where_it_was_forked() -> None:
    """The current branch has the leftmost lane, also below the head of a newer one; lines join at the fork."""
    assert drawn(_forked()) == [
        "  ○ 6",
        "○ │ 5",
        "│ ○ 4",
        "○ │ 3",
        "├─╯",
        "○   2",
        "○   1",
    ]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """The same graph in letters, bars and dashes, and nothing else in any line."""
    assert drawn(_forked(), glyphs=ASCII) == [
        "  o 6",
        "o | 5",
        "| o 4",
        "o | 3",
        "+-/",
        "o   2",
        "o   1",
    ]
    hostile = timeline([header(1, message="né\x1b[31m\u202e 漢字", tags=("ü",))])
    assert all(line.isascii() for line in draw(hostile, width=60, glyphs=ASCII))


def test_a_merge_shows_both_parents() -> None:
    """A merge opens a lane for its other parent."""
    found = timeline(
        [
            header(1),
            header(2),
            header(3, [1], branch="side"),
            header(4, [2, 3]),
        ],
        [branch("main", 4), branch("side", 3, 1, state=BranchState.MERGED)],
    )
    assert drawn(found) == ["◆   4", "├─╮", "│ ○ 3", "○ │ 2", "├─╯", "○   1"]
    assert "[side merged]" in draw(found, width=100)[4]


def test_lines_that_lead_to_the_same_place_join() -> None:
    """Three branches of one checkpoint need no more lanes than are still apart, and what passes is not joined."""
    headers = [
        header(1),
        header(2, [1]),
        *(header(seq, [1], branch=f"b{seq}") for seq in (3, 4, 5)),
        header(6, [2]),
    ]
    branches = [branch("main", 6), *(branch(f"b{seq}", seq, 1) for seq in (3, 4, 5))]
    assert drawn(timeline(headers, branches)) == [
        "○     6",
        "│ ○   5",
        "│ │ ○ 4",
        "│ ├─╯",
        "│ │ ○ 3",
        "│ ├─╯",
        "○ │   2",
        "├─╯",
        "○     1",
    ]  # fmt: skip


def test_a_line_passes_over_a_lane_it_does_not_join() -> None:
    """What moves past a lane leaves that lane whole."""
    headers = [
        header(1),
        header(2, [1], branch="a"),
        header(3, [1], branch="b"),
        header(4, [1]),
        header(5, [4, 3]),
    ]
    headers += [header(6, [2], branch="a")]
    branches = [branch("main", 5), branch("a", 6, 1), branch("b", 3, 1)]
    assert drawn(timeline(headers, branches)) == [
        "  ○   6",
        "◆ │   5",
        "├─│─╮",
        "○ │ │ 4",
        "│ │ ○ 3",
        "├─│─╯",
        "│ ○   2",
        "├─╯",
        "○     1",
    ]


def test_lanes_that_do_not_fit_share_the_last_one() -> None:
    """Thousands of open branches leave room for words, and every branch is named."""
    count = 500
    headers = [header(1)]
    branches = [branch("main", count + 1)]
    for seq in range(2, count + 2):
        headers.append(header(seq, [seq - 1]))
    for at in range(2, count):
        seq = count + at
        headers.append(header(seq, [at], branch=f"b{at}"))
        branches.append(branch(f"b{at}", seq, at))
    found = timeline(headers, branches, fold=True)
    lines = draw(found, width=80)
    assert max(map(cell_len, lines)) <= 80
    assert sum("[b" in line for line in lines) == count - 2
    ElementTree.fromstring(picture([found]))


# --- what is missing -------------------------------------------------------------------------------------------


def test_what_was_pruned_shows_as_such() -> None:
    """A broken line leads over the gap to the newest checkpoint before it, and to nothing where none is left."""
    found = timeline([header(3), header(6), header(7)], gaps=[(1, 2), (4, 5)])
    assert drawn(found) == ["○ 7", "○ 6", "◌ 2 pruned, 4–5", "○ 3", "◌ 2 pruned, 1–2"]
    assert found.pruned == 4
    assert [(row.count, row.first_seq, row.last_seq) for row in found.rows if isinstance(row, GapNode)] == [
        (2, 4, 5),
        (2, 1, 2),
    ]
    assert [link.is_broken for row in found.rows for link in row.links] == [False, True, True, True]


def test_a_branch_whose_fork_point_was_pruned_stays_connected() -> None:
    """It is followed back by place: to the newest before the fork."""
    headers = [header(1), header(4, [3], branch="side"), header(5, [3]), header(6)]
    branches = [branch("main", 6), branch("side", 4, 3)]
    assert drawn(timeline(headers, branches, gaps=[(2, 3)])) == [
        "○   6",
        "○   5",
        "┆ ○ 4",
        "┆ ◌ 2 pruned, 2–3",
        "├╌╯",
        "○   1",
    ]


def test_a_merge_whose_own_line_was_pruned_keeps_both_lines() -> None:
    """The pruned first parent leaves a broken line along the branch, beside the whole one to the other parent."""
    headers = [header(1), header(3, [1], branch="side"), header(4, [2, 3])]
    found = timeline(headers, [branch("main", 4), branch("side", 3, 1)], gaps=[(2, 2)])
    assert drawn(found) == ["◆   4", "├─╮", "┆ ○ 3", "◌ │ checkpoint 2 pruned", "├─╯", "○   1"]


def test_a_gap_that_broke_no_line_is_only_counted() -> None:
    """A whole branch that is gone leaves no row behind."""
    found = timeline([header(1), header(4, [1])], gaps=[(2, 3)])
    assert (drawn(found), found.pruned) == (["○ 4", "○ 1"], 2)


def test_damaged_headers_keep_their_place() -> None:
    """Of a damaged header the place is known; the lines through it stay."""
    row = HeaderRow(id="c2", session="u", seq=2, branch="main", raw=b"")
    found = timeline([header(1), header(3)], damaged=[row])
    assert drawn(found) == ["○ 3", "! checkpoint 2 has a damaged header: run stepkeep verify", "○ 1"]
    assert found.damaged == ("c2",)
    assert "1 damaged" in draw(found, width=80)[0]


def test_only_damaged_headers() -> None:
    """A session of which nothing is intact still shows where its checkpoints are."""
    rows = [HeaderRow(id=f"c{seq}", session="u", seq=seq, branch="main", raw=b"") for seq in (1, 2)]
    found = timeline([], damaged=rows)
    assert [type(row) for row in found.rows] == [DamagedNode, DamagedNode]
    assert draw(found, width=80)[0] == "run: in_progress, 0 checkpoints, 2 damaged"


def test_a_parent_from_the_future_is_no_parent() -> None:
    """A header that names a newer one as parent, or itself, makes no circle."""
    found = timeline([header(1, [2]), header(2, [2, 1])])
    assert drawn(found) == ["◆ 2", "○ 1"]


def test_a_new_branch_without_checkpoints_is_named_where_it_stands() -> None:
    """A branch that has only been forked is named at its fork point; one without any place only in the total."""
    found = timeline([header(1), header(2)], [branch("main", 2), branch("new", 1, 1), branch("empty", None)])
    assert [entry.heads for entry in found.entries] == [("main",), ("new",)]
    assert found.entries[1].forks == ("new",)
    assert "3 branches" in draw(found, width=80)[0]


def test_the_first_checkpoint_of_a_branch_that_names_no_parent_begins_at_its_fork() -> None:
    """The record of the branch tells where it came from."""
    found = timeline([header(1), header(2, (), branch="side")], [branch("main", 1), branch("side", 2, 1)])
    assert found.rows[0].links[0].row == 1
    assert not found.rows[0].links[0].is_broken


# --- folding ---------------------------------------------------------------------------------------------------


def _long(count: int = 240) -> list[Header]:
    """Automatic ones, some of them marked."""
    marks: dict[int, dict[str, Any]] = {
        17: {"trigger": MANUAL},
        100: {"tags": ("verified",)},
        150: {"status": Status.FAILED},
    }
    return [header(seq, **marks.get(seq, {})) for seq in range(1, count + 1)]


def test_plain_runs_are_folded() -> None:
    """First, last, manual, tagged and failed ones stay; what lies between becomes one line with its sums."""
    found = timeline(_long(), stored=Counter({f"c{seq}": 10 for seq in range(1, 241)}), fold=True)
    assert [row.checkpoint.seq if isinstance(row, CheckpointNode) else row.count for row in found.rows] == [
        240, 89, 150, 49, 100, 82, 17, 15, 1,
    ]  # fmt: skip
    assert draw(found, width=80)[3] == "⋮ 89 automatic, steps 151–239, 88 min, 890B stored"


def test_short_histories_are_not_folded() -> None:
    """What fits on a screen is shown as it is, and without `fold` everything is."""
    few = [header(seq) for seq in range(1, FOLD_ABOVE + 1)]
    assert len(timeline(few, fold=True).entries) == FOLD_ABOVE
    assert len(timeline(_long()).entries) == 240


def test_branches_that_were_saved_in_turn_fold_apart() -> None:
    """Two lines whose numbers alternate need one fold each."""
    headers = [header(1), header(2, [1], branch="side")]
    headers += [
        header(seq, [seq - 2 if seq > 3 else 1], branch="side" if seq % 2 == 0 else "main")
        for seq in range(3, 203)
    ]
    found = timeline(headers, [branch("main", 201), branch("side", 202, 1)], fold=True)
    assert drawn(found) == [
        "  ○ 202",
        "○ │ 201",
        "│ ⋮ 100 automatic, steps 2–200, 3 h 18 min, 0B stored",
        "⋮ │ 99 automatic, steps 3–199, 3 h 16 min, 0B stored",
        "├─╯",
        "○   1",
    ]


def test_thinned_histories_fold_with_their_gaps() -> None:
    """Gaps and damage between folded ones are counted in the fold."""
    headers = [header(seq, [seq - 1]) for seq in range(2, 200, 2) if seq != 100]
    damaged = [HeaderRow(id="c100", session="u", seq=100, branch="main", raw=b"")]
    gaps = [(seq, seq) for seq in range(1, 200, 2)]
    found = timeline(headers, gaps=gaps, damaged=damaged, fold=True)
    assert drawn(found) == [
        "○ 198",
        "⋮ 96 automatic, 98 pruned, 1 damaged, steps 4–196, 3 h 12 min, 0B stored",
        "○ 2",
        "◌ checkpoint 1 pruned",
    ]


# --- filters ---------------------------------------------------------------------------------------------------


def test_a_tag_folds_what_lies_between() -> None:
    """Only what has the tag is shown, connected over folds; what came after is counted."""
    found = timeline(_long(), wanted=Filter(tag="verified"))
    assert drawn(found) == [
        "  140 checkpoints left out that nothing here descends from",
        "○ 100",
        "⋮ 99 left out, steps 1–99, 98 min, 0B stored",
    ]


def test_a_branch_is_shown_with_where_it_came_from() -> None:
    """What was saved on other branches and leads here is folded, the rest counted."""
    found = timeline(
        _forked_headers(), [branch("main", 5), branch("side", 6, 2)], wanted=Filter(branch="side")
    )
    assert drawn(found) == [
        "  2 checkpoints left out that nothing here descends from",
        "○ 6",
        "○ 4",
        "⋮ 2 left out on main, steps 1–2, 60 s, 0B stored",
    ]
    assert found.left_out == 2


def test_a_branch_without_checkpoints_matches_nothing() -> None:
    """It is said in words, and the picture stays one."""
    found = timeline(_forked_headers(), [branch("main", 5), branch("new", 5, 5)], wanted=Filter(branch="new"))
    assert draw(found, width=80)[1:] == ["  nothing matches: 6 checkpoints left out"]
    ElementTree.fromstring(picture([found]))


def test_lines_still_meet_under_a_filter() -> None:
    """A fork point that does not match is drawn where two matching lines need it."""
    headers = [
        msgspec.structs.replace(each, tags=("t",) if each.seq > 4 else ()) for each in _forked_headers()
    ]
    found = timeline(headers, [branch("main", 5), branch("side", 6, 2)], wanted=Filter(tag="t"))
    assert drawn(found) == [
        "  ○ 6",
        "○ │ 5",
        "│ ⋮ 1 left out on side, step 4, 0B stored",
        "⋮ │ 1 left out on main, step 3, 0B stored",
        "├─╯",
        "○   2",
        "⋮   1 left out on main, step 1, 0B stored",
    ]
    assert [entry.is_match for entry in found.entries] == [True, True, False]


def test_since_ends_with_what_is_older() -> None:
    """All lines that go on before that time reach the last row."""
    wanted = Filter(since_us=START + 3 * MINUTE)
    found = timeline(_forked_headers(), [branch("main", 5), branch("side", 6, 2)], wanted=wanted)
    assert drawn(found) == ["  ○ 6", "○ │ 5", "│ ○ 4", "○ │ 3", "├─╯", "⋮   2 older"]


def test_since_does_not_tear_apart_what_a_jumping_clock_saved() -> None:
    """A checkpoint with an older time between newer ones is folded in its place."""
    headers = [header(1), header(2), header(3, time_us=START), header(4)]
    found = timeline(headers, wanted=Filter(since_us=START + 2 * MINUTE))
    assert [type(row) for row in found.rows] == [CheckpointNode, FoldNode, CheckpointNode, RestNode]


def test_since_the_future() -> None:
    """Nothing matches: all is older."""
    found = timeline([header(1), header(2)], wanted=Filter(since_us=START * 2))
    assert found.rows == (RestNode(count=2),)
    assert draw(timeline([], wanted=Filter(since_us=0)), width=80) == ["run: in_progress, no checkpoint yet"]


def test_a_limit_counts_rows() -> None:
    """So many rows, then how many checkpoints are older."""
    found = timeline(_long(), fold=True, limit=3)
    assert len(found.rows) == 4
    assert found.rows[-1] == RestNode(count=240 - 1 - 89 - 1)


# --- texts -----------------------------------------------------------------------------------------------------


def test_hostile_texts_stay_in_their_line() -> None:
    """Escape sequences, line breaks, wide and endless texts neither break lines nor run over the width."""
    nasty = "\x1b]0;owned\x07\n\u202eevil\ud800</text><script>" + "漢字" * 5000
    found = timeline(
        [header(1, message=nasty, tags=("t" * 10_000, "\x1b[2J", nasty[:500])), header(2)],
        [branch("main", 2), branch("\x1b[31mred\n" + "b" * 900, 1, 1)],
    )
    found = msgspec.structs.replace(found, session=nasty[:300])
    for width in (20, 40, 80, 200):
        lines = draw(found, width=width)
        assert len(lines) == 5
        assert max(map(cell_len, lines)) <= width
        assert all(line.isprintable() for line in lines)
    document = picture([found])
    ElementTree.fromstring(document)
    assert "<script" not in document
    assert "\x1b" not in document


def test_histories_of_several_years_show_the_year() -> None:
    """On a narrow terminal the year is left out only where it is the same everywhere."""
    found = timeline([header(1), header(2, time_us=START + 400 * 24 * 60 * MINUTE)])
    assert "2026-03-02 08:01:00" in draw(found, width=80)[3]


def test_the_picture_stands_alone() -> None:
    """The SVG is well-formed, has no scripts and no references, and follows light and dark pages."""
    document = picture([_forked(), timeline([])])
    root = ElementTree.fromstring(document)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg", "title", "style", "rect", "path", "circle", "text",
    }  # fmt: skip
    assert "href" not in document
    assert "url(" not in document
    assert "prefers-color-scheme: dark" in document


# --- any history -----------------------------------------------------------------------------------------------

_TEXTS = st.text(max_size=30)


@st.composite
def histories(draw: st.DrawFn, *, is_whole: bool = False) -> dict[str, Any]:
    """A session: a random graph on a few branches, some of it pruned or damaged."""
    names = draw(st.lists(_TEXTS.filter(bool), max_size=3, unique=True))
    names = ["main", *(name for name in names if name != "main")]
    kinds = st.tuples(
        st.lists(st.integers(1, 8), max_size=3, unique=True) | st.just([1]) | st.just([1]),
        st.integers(0, len(names) - 1),
        st.integers(0, 90),
        st.sampled_from(["", "", "", "tag", "manual"]),
    )
    headers = [
        header(
            seq,
            [seq - back for back in backs if back < seq],
            branch=names[name],
            time_us=START + minute * MINUTE,
            trigger=MANUAL if kind == "manual" else Trigger(),
            tags=("t",) if kind == "tag" else (),
            message=draw(_TEXTS) if seq < 4 else "",
        )
        for seq, (backs, name, minute, kind) in enumerate(draw(st.lists(kinds, max_size=45)), start=1)
    ]
    count = len(headers)
    heads = {each.branch: each.seq for each in headers}
    branches = [
        branch(
            name,
            heads.get(name),
            draw(st.sampled_from([None, 1, 5])) if name != "main" and count > 5 else None,
        )
        for name in names
    ]
    some = st.lists(st.sampled_from("kkkkpd"), min_size=count, max_size=count)
    fates = ["k"] * count if is_whole else draw(st.just(["k"] * count) | some)
    return {
        "headers": [each for each, fate in zip(headers, fates, strict=True) if fate == "k"],
        "damaged": [
            HeaderRow(id=each.id, session="u", seq=each.seq, branch=each.branch, raw=b"")
            for each, fate in zip(headers, fates, strict=True)
            if fate == "d"
        ],
        "gaps": [(at, at) for at, fate in enumerate(fates, start=1) if fate == "p"],
        "branches": branches,
        "current": draw(st.sampled_from(names)),
    }


_FILTERS = st.builds(
    Filter,
    since_us=st.none() | st.integers(0, 90).map(lambda minutes: START + minutes * MINUTE),
    branch=st.none() | st.just("main"),
    tag=st.none() | st.just("t"),
)


@settings(max_examples=examples(40))
@given(histories(), st.booleans(), st.none() | st.integers(1, 10), _FILTERS | st.just(Filter()))
def test_every_checkpoint_is_in_exactly_one_place(
    history: dict[str, Any], fold: bool, limit: int | None, wanted: Filter
) -> None:
    """Drawn, inside one fold, older, or left out: the numbers add up, and links lead to later rows."""
    found = timeline(**history, fold=fold, limit=limit, wanted=wanted)
    counted = sum(row.count for row in found.rows if isinstance(row, FoldNode | RestNode))
    shown = [entry.checkpoint.id for entry in found.entries]
    assert len(set(shown)) == len(shown)
    assert len(shown) + counted + found.left_out == found.total == len(history["headers"])
    for at, row in enumerate(found.rows):
        assert all(at < link.row < len(found.rows) for link in row.links)
    if limit is None:
        assert sum(wanted.matches(each) for each in history["headers"]) <= len(shown) + sum(
            row.count for row in found.rows if isinstance(row, FoldNode) and row.is_match
        )


@settings(max_examples=examples(40))
@given(histories(is_whole=True), st.booleans())
def test_folding_keeps_who_descends_from_whom(history: dict[str, Any], fold: bool) -> None:
    """Among the rows of checkpoints, one leads down to another exactly if it descends from it."""
    history["branches"] = [branch("main", None)]
    found = timeline(**history, fold=fold)
    below: dict[int, set[int]] = {}
    for at in range(len(found.rows) - 1, -1, -1):
        links = {link.row for link in found.rows[at].links}
        below[at] = links.union(*(below[row] for row in links)) if links else set()
    ancestors: dict[str, set[str]] = {}
    for each in history["headers"]:
        ancestors[each.id] = set(each.parents).union(*(ancestors[parent] for parent in each.parents))
    ids = {at: row.checkpoint.id for at, row in enumerate(found.rows) if isinstance(row, CheckpointNode)}
    for at, id in ids.items():
        assert {ids[row] for row in below[at] if row in ids} == ancestors[id] & set(ids.values())


@given(
    histories(), st.booleans(), st.none() | st.integers(1, 10), _FILTERS, st.integers(20, 200), st.booleans()
)
def test_no_line_is_wider_than_the_terminal(
    history: dict[str, Any], fold: bool, limit: int | None, wanted: Filter, width: int, is_ascii: bool
) -> None:
    """Whatever the history, lines fit and hold nothing that a terminal would act upon; the picture is well-formed."""
    found = timeline(**history, fold=fold, limit=limit, wanted=wanted)
    lines = draw(found, width=width, glyphs=ASCII if is_ascii else UNICODE)
    assert all(cell_len(line) <= width for line in lines)
    assert lines == [clean(line) for line in lines]
    ElementTree.fromstring(picture([found]))


@settings(max_examples=examples(40))
@given(histories(), st.booleans(), _FILTERS | st.just(Filter()))
def test_drawn_lines_lead_where_links_do(history: dict[str, Any], fold: bool, wanted: Filter) -> None:
    """Who follows the drawn lines down from a row comes to the rows it is linked with, and to no other."""
    found = timeline(**history, fold=fold, wanted=wanted)
    if not found.rows:
        return
    above = 1 + bool(found.entries) + bool(found.left_out)
    grid = _Grid(draw(found, width=2000)[above:], lanes(found))
    assert len(grid.rows) == len(found.rows)
    for at, row in enumerate(found.rows):
        assert grid.below(at) == {link.row for link in row.links}


_JOINTS = {glyph: set(meeting) for meeting, glyph in UNICODE.joints.items() if meeting not in ("l", "r")}
_JOINTS |= {"┆": {"u", "d"}, "╌": {"l", "r"}}
_LINES = "│┆"


class _Grid:
    """Reads a drawing back as a person does: from mark to mark along the lines."""

    def __init__(self, lines: list[str], lanes: int) -> None:
        self._lines = [line[: 2 * lanes].ljust(2 * lanes) for line in lines]
        self._lanes = lanes
        texts = [line[2 * lanes :] for line in lines]
        self.rows = [number for number, text in enumerate(texts) if text.strip()]
        self._row_at = {number: at for at, number in enumerate(self.rows)}

    def _mark(self, number: int) -> int:
        marks = [at for at, char in enumerate(self._lines[number]) if char not in " │┆"]
        assert len(marks) == 1
        return marks[0]

    def below(self, row: int) -> set[int]:
        number = self.rows[row]
        mark = self._mark(number)
        if number + 1 in self._row_at or number + 1 == len(self._lines):
            return self._follow(number + 1, mark)
        reached: set[int] = set()
        for column in self._connected(number + 1, mark):
            reached |= self._follow(number + 2, column)
        return reached

    def _follow(self, number: int, column: int) -> set[int]:
        """The row that a line comes to, going down into a line of the drawing."""
        while number < len(self._lines):
            char = self._lines[number][column]
            if number in self._row_at:
                if char not in _LINES:
                    return {self._row_at[number]} if char != " " else set()
            elif "d" not in _JOINTS[char]:
                if "u" not in _JOINTS[char]:
                    return set()
                column = self._mark(number - 1)  # it ends in the line of the mark above
                assert "d" in _JOINTS[self._lines[number][column]]
            number += 1
        return set()

    def _connected(self, number: int, mark: int) -> list[int]:
        """The columns in which what leaves a mark goes on below."""
        line = self._lines[number]
        found = [mark] if "d" in _JOINTS[line[mark]] else []
        for step, side in ((-1, "r"), (1, "l")):
            at = mark + step
            while 0 <= at < len(line) and (
                line[at] in "─╌" or line[at] in _LINES or side in _JOINTS[line[at]]
            ):
                if at % 2 and line[at] not in "─╌":
                    break
                if not at % 2 and line[at] not in "─╌│┆" and "d" in _JOINTS[line[at]]:
                    found.append(at)
                at += step
        return found
