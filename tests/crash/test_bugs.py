"""The harness is tested, not trusted: it finds each bug that was put in on purpose."""

from __future__ import annotations

import pytest

from tests.crash.bugs import BUGS
from tests.crash.catching import CATCHES, Catch, caught

pytestmark = pytest.mark.usefixtures("strace")


def test_every_bug_has_its_method() -> None:
    """No seeded bug is left out."""
    assert {catch.bug for catch in CATCHES} == BUGS.keys()


@pytest.mark.full
@pytest.mark.parametrize("catch", CATCHES, ids=lambda catch: catch.bug)
def test_a_seeded_bug_is_caught(catch: Catch) -> None:
    """The method that is to find this bug does."""
    assert caught(catch).violations
