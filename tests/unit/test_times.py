"""Times as a person writes them, as tables; and that a branch cannot be called like one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.errors import InvalidInput
from stepkeep.history import refs, times
from stepkeep.model import check_branch_name, from_us, to_us

NOW = datetime(2025, 7, 3, 10, 20, 30, tzinfo=UTC)
NOW_US = to_us(NOW)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[tzinfo]:
    """A machine in New York."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield times.zone_named("local")
    monkeypatch.undo()
    time.tzset()


IN_UTC = [
    ("now", "2025-07-03 10:20:30"),
    ("NOW", "2025-07-03 10:20:30"),
    ("2 hours ago", "2025-07-03 08:20:30"),
    ("an hour ago", "2025-07-03 09:20:30"),
    ("a minute ago", "2025-07-03 10:19:30"),
    ("90s ago", "2025-07-03 10:19:00"),
    ("90 secs ago", "2025-07-03 10:19:00"),
    ("2h 30m ago", "2025-07-03 07:50:30"),
    ("2h30m ago", "2025-07-03 07:50:30"),
    ("2 hours, 30 mins ago", "2025-07-03 07:50:30"),
    ("1.5 hours ago", "2025-07-03 08:50:30"),
    ("0.25s ago", "2025-07-03 10:20:29.750000"),
    ("3 days ago", "2025-06-30 10:20:30"),
    ("2 weeks ago", "2025-06-19 10:20:30"),
    ("1w 1d ago", "2025-06-25 10:20:30"),
    ("0s ago", "2025-07-03 10:20:30"),
    ("yesterday", "2025-07-02 00:00:00"),
    ("today", "2025-07-03 00:00:00"),
    ("yesterday 14:30", "2025-07-02 14:30:00"),
    ("yesterday 14:30:15", "2025-07-02 14:30:15"),
    ("Yesterday at 9:05", "2025-07-02 09:05:00"),
    ("today 09:00", "2025-07-03 09:00:00"),
    ("14:30", "2025-07-03 14:30:00"),
    ("14:30:01.5", "2025-07-03 14:30:01.500000"),
    ("2025-01-20", "2025-01-20 00:00:00"),
    ("20250120", "2025-01-20 00:00:00"),
    ("2025-W04-1", "2025-01-20 00:00:00"),
    ("2025-01-20 14:30", "2025-01-20 14:30:00"),
    ("2025-01-20 14:30:00", "2025-01-20 14:30:00"),
    ("2025-01-20T14:30:00", "2025-01-20 14:30:00"),
    ("2025-01-20T14:30:00Z", "2025-01-20 14:30:00"),
    ("2025-01-20t14:30:00z", "2025-01-20 14:30:00"),
    ("2025-01-20 14:30 UTC", "2025-01-20 14:30:00"),
    ("2025-01-20 14:30:00+02:00", "2025-01-20 12:30:00"),
    ("2025-01-20 14:30:00 +0530", "2025-01-20 09:00:00"),
    ("2025-01-20 14:30-08:00", "2025-01-20 22:30:00"),
    ("2025-01-20 14:30:00.123456", "2025-01-20 14:30:00.123456"),
    ("1969-12-31 23:59:59", "1969-12-31 23:59:59"),
    ("0001-01-01", "0001-01-01 00:00:00"),
    ("9999-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"),
]


@pytest.mark.parametrize(("text", "expected"), IN_UTC)
def test_a_time_in_utc(text: str, expected: str) -> None:
    """Every form names the moment that the table says."""
    found = times.parse(text, now_us=NOW_US)
    assert found == to_us(datetime.fromisoformat(expected))


IN_BERLIN = [
    ("now", "2025-07-03 10:20:30"),
    ("2 hours ago", "2025-07-03 08:20:30"),
    ("yesterday 14:30", "2025-07-02 12:30:00"),
    ("today", "2025-07-02 22:00:00"),
    ("2025-01-20 14:30:00", "2025-01-20 13:30:00"),
    ("2025-07-20 14:30:00", "2025-07-20 12:30:00"),
    ("2025-07-20 14:30:00Z", "2025-07-20 14:30:00"),
    ("2025-03-30 01:59:59", "2025-03-30 00:59:59"),
    ("2025-03-30 03:00:00", "2025-03-30 01:00:00"),
    ("2025-10-26 01:59:59", "2025-10-25 23:59:59"),
    ("2025-10-26 03:00:00", "2025-10-26 02:00:00"),
    ("2025-10-26 02:30:00+02:00", "2025-10-26 00:30:00"),
    ("2025-10-26 02:30:00+01:00", "2025-10-26 01:30:00"),
]


@pytest.mark.parametrize(("text", "expected"), IN_BERLIN)
def test_a_time_in_another_zone(text: str, expected: str) -> None:
    """Without a zone of its own a time is read in the given one, with its summer and winter."""
    found = times.parse(text, now_us=NOW_US, zone=BERLIN)
    assert found == to_us(datetime.fromisoformat(expected))


def test_today_is_a_day_of_the_zone() -> None:
    """Shortly after midnight in Berlin it is still yesterday in UTC."""
    late_us = to_us(datetime(2025, 7, 3, 22, 30, tzinfo=UTC))
    assert times.parse("today 00:10", now_us=late_us, zone=BERLIN) == to_us(datetime(2025, 7, 3, 22, 10))
    assert times.parse("today 00:10", now_us=late_us) == to_us(datetime(2025, 7, 3, 0, 10))


@pytest.mark.parametrize("text", ["2025-03-30 02:00:00", "2025-03-30 02:30", "2025-03-30 02:59:59.999999"])
def test_a_skipped_time_is_refused(text: str) -> None:
    """A time of day that the clocks never showed is refused; the message says what is on both sides of the gap."""
    with pytest.raises(InvalidInput) as caught:
        times.parse(text, now_us=NOW_US, zone=BERLIN)
    assert caught.value.code == "skipped_time"
    assert "Europe/Berlin" in caught.value.message
    assert "from 2025-03-30 01:59:59+01:00 to 2025-03-30 03:00:00+02:00" in caught.value.message


@pytest.mark.parametrize("text", ["2025-10-26 02:00:00", "2025-10-26 02:30", "2025-10-26 02:59:59"])
def test_a_time_that_came_twice_is_refused(text: str) -> None:
    """A time of day that the clocks showed twice is ambiguous; the message names both, ready to be used."""
    with pytest.raises(InvalidInput) as caught:
        times.parse(text, now_us=NOW_US, zone=BERLIN)
    assert caught.value.code == "ambiguous_time"
    full = str(datetime.fromisoformat(text))
    for offset, hours in (("+02:00", 2), ("+01:00", 1)):
        assert f"{full}{offset}" in caught.value.message
        moment = times.parse(f"{full}{offset}", now_us=NOW_US, zone=BERLIN)
        assert moment == to_us(datetime.fromisoformat(text) - timedelta(hours=hours))


BAD = [
    "2025-02-30",
    "2025-13-01",
    "2025-00-01",
    "24:30",
    "14:60",
    "today 25:00",
    "today 9",
    "2025-01-20 14:61",
    "2025-01-20 14:30:00 somewhere",
    "2025-01-20 14:30+25:00",
    "10000-01-01",
    "123456789-01-01",
    "0000-01-01",
    f"1{'0' * 30} hours ago",
    f"1{'0' * 150} hours ago",
    "999999999999999999 weeks ago",
    "100000000 days ago",
    "3 months ago",
    "a year ago",
    "5 foos ago",
    "2 hours 3 parsecs ago",
]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("zone", [UTC, BERLIN], ids=str)
def test_what_has_the_form_of_a_time_and_is_none_is_refused(text: str, zone: tzinfo) -> None:
    """Impossible days, hours and units, and what lies beyond the calendar, are told apart from other text."""
    with pytest.raises(InvalidInput) as caught:
        times.parse(text, now_us=NOW_US, zone=zone)
    assert caught.value.code == "invalid_time"


NO_TIMES = ["", "latest", "tomorrow", "ago", "a ago", "2025", "12", "yesterday-ish", "2 hours", "२ hours ago"]
NO_TIMES += ["2025-01-20-experiment", "hours ago", "x" * 5000, "1" * 5000 + " hours ago", "\0", "2025-1-2"]


@pytest.mark.parametrize("text", NO_TIMES)
def test_other_text_is_no_time(text: str) -> None:
    """`parse` returns None for other texts, `read` refuses them in few words."""
    assert times.parse(text, now_us=NOW_US) is None
    with pytest.raises(InvalidInput) as caught:
        times.read(text, now_us=NOW_US)
    assert caught.value.code == "invalid_time"
    assert len(caught.value.message) < 500


ZONES: list[tzinfo] = [
    UTC,
    BERLIN,
    ZoneInfo("Asia/Kolkata"),
    timezone(timedelta(hours=-8)),
    times.zone_named("local"),
]


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(ZONES))
def test_what_is_written_is_read_back(moment: datetime, zone: tzinfo) -> None:
    """Every moment in every zone, also the one that the clocks showed twice."""
    text = times.written(to_us(moment), zone)
    assert times.parse(text.partition(" (")[0], now_us=NOW_US, zone=zone) == to_us(moment)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "local"])
@pytest.mark.parametrize("end", [datetime.min, datetime.max])
def test_the_ends_of_the_calendar(new_york: tzinfo, zone: str, end: datetime) -> None:
    """A moment that UTC cannot name is refused; one that only the zone cannot name is written in UTC."""
    there = times.zone_named(zone)
    assert times.written(to_us(end), there)
    try:
        moment_us = times.of_datetime(end, there)
    except InvalidInput:
        assert there is not UTC
    else:
        assert times.written(moment_us, there)


@given(st.datetimes(), st.sampled_from(ZONES))
def test_a_time_of_day_is_one_moment_or_refused(wall: datetime, zone: tzinfo) -> None:
    """What is accepted shows that very time on the clocks of the zone, and no other moment does."""
    try:
        moment_us = times.of_datetime(wall, zone)
    except InvalidInput:
        return
    shown = from_us(moment_us).astimezone(zone)
    assert shown.replace(tzinfo=None) == wall.replace(fold=0)
    assert wall.replace(tzinfo=zone, fold=0).utcoffset() == wall.replace(tzinfo=zone, fold=1).utcoffset()


@given(st.text(max_size=40) | st.from_regex(r"[0-9a-z:. +,-]{0,30}( ago)?", fullmatch=True))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text is a time, is none, or is refused."""
    for zone in (UTC, BERLIN):
        try:
            found = times.parse(text, now_us=NOW_US, zone=zone)
        except InvalidInput:
            continue
        assert found is None or times.written(found, zone)


def test_the_local_zone_has_summer_and_winter(new_york: tzinfo) -> None:
    """`local` reads times as the clocks of this machine show them."""
    assert os.environ["TZ"] == "America/New_York"
    assert times.parse("2025-01-20 14:30", now_us=NOW_US, zone=new_york) == to_us(
        datetime(2025, 1, 20, 19, 30)
    )
    assert times.parse("2025-07-20 14:30", now_us=NOW_US, zone=new_york) == to_us(
        datetime(2025, 7, 20, 18, 30)
    )
    for text, code in (("2025-03-09 02:30", "skipped_time"), ("2025-11-02 01:30", "ambiguous_time")):
        with pytest.raises(InvalidInput) as caught:
            times.parse(text, now_us=NOW_US, zone=new_york)
        assert caught.value.code == code
    assert times.written(NOW_US, new_york) == "2025-07-03 06:20:30 -04:00 (the local zone)"


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "", "../../etc/passwd", "/etc/passwd", "Europe/Berlin\0", "x" * 5000]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    """A zone that this machine does not know is an error with few words, never a file that is opened."""
    with pytest.raises(InvalidInput) as caught:
        times.zone_named(name)
    assert caught.value.code == "unknown_zone"
    assert len(caught.value.message) < 200


def test_zones_have_names() -> None:
    assert [times.zone_name(times.zone_named(name)) for name in ("UTC", "utc", "Europe/Berlin", "local")] == [
        "UTC",
        "UTC",
        "Europe/Berlin",
        "the local zone",
    ]


# --- branches ----------------------------------------------------------------------------------------------------

RESERVED = [
    "12",
    "2025",
    "latest",
    "newest",
    "now",
    "latest~2",
    "latest@before",
    "#1",
    "seq:1",
    "seq:",
    "step-5",
    "step--1",
]
RESERVED += ["tag:a", "branch:b", "cp_1", "yesterday", "today 14:30", "2 hours ago", "2025-01-20", "14:30"]
RESERVED += ["2025-01-20T14:30:00Z", "20250120", "2025-W04-1", "Latest", "NOW", "cp_"]

FREE = ["main", "now-or-never", "latest-fix", "a latest", "step-five", "seq", "#fix", "2025-01-20-experiment"]
FREE += ["tags", "agora", "v2025", "1:1", "1.2", "feature/x", "branch", "cp", "step-5b"]


@pytest.mark.parametrize("name", RESERVED)
def test_a_branch_is_not_called_like_a_ref(name: str) -> None:
    """What names a checkpoint cannot also name a branch."""
    with pytest.raises(InvalidInput) as caught:
        check_branch_name(name)
    assert caught.value.code == "reserved_name"


@pytest.mark.parametrize("name", FREE)
def test_other_names_are_free(name: str) -> None:
    """Names that only resemble a ref are fine."""
    assert check_branch_name(name) == name


@given(
    st.sampled_from([text for text, _ in IN_UTC])
    | st.from_regex(
        r"latest(~[0-9]{1,3})?|(#|seq:)[0-9]{1,9}|step--?[0-9]{1,5}|cp_[0-9a-zT_]{0,9}", fullmatch=True
    )
    | st.from_regex(
        r"(tag|branch):\w{1,5}|[0-9]{1,3} ?(s|m|hours|days) ago|[0-2][0-9]:[0-5][0-9]", fullmatch=True
    )
    | st.datetimes().map(str)
    | st.datetimes().map(datetime.isoformat)
    | st.dates().map(str)
    | st.text(max_size=12)
)
def test_no_ref_is_free_as_the_name_of_a_branch(text: str) -> None:
    """Whatever `refs.parse` accepts, or takes for a broken time, is refused as a name."""
    try:
        refs.parse(text, now_us=NOW_US)
    except InvalidInput as exc:
        if exc.code == "invalid_ref" or not exc.code.endswith("time"):
            return
    with pytest.raises(InvalidInput):
        check_branch_name(text)
