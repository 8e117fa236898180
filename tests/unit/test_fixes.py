"""Quick fixes: one table from codes to advice."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stepkeep import errors
from stepkeep.cli.app import COMMANDS
from stepkeep.fixes import FIXES, IMPORT_FIXES, fixes_for, fixes_for_codes

ERRORS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize(
    "code",
    [errors.SCHEMA_INVALID, errors.INTEGRITY_MISMATCH, errors.WRITE_FAILED, errors.PRUNE_FAILED],
)
def test_the_codes_of_the_lifecycle_have_fixes(code: str) -> None:
    """Each has advice of its own, and a session that is named is in the commands."""
    fixes = fixes_for(errors.StepkeepError("x", code=code, session="my run"))
    assert fixes == tuple(fix.replace("{session}", "'my run'") for fix in FIXES[code])
    assert "{" not in "".join(fixes)


def test_a_missing_package_is_not_taken_for_another() -> None:
    """The message names the extra, and the advice names no other one."""
    missing = errors.driver_missing("encryption", "crypto", ImportError("no module"))
    assert "pip install stepkeep[crypto]" in missing.message
    assert "stepkeep[" not in "".join(fixes_for(missing))


@pytest.mark.parametrize(
    "kind",
    [
        errors.NotFound,
        errors.Conflict,
        errors.Corrupt,
        errors.BackendUnavailable,
        errors.Unsupported,
        errors.InvalidInput,
    ],
)
def test_every_error_has_a_fix(kind: type[errors.StepkeepError]) -> None:
    """A code without advice of its own has that of its class."""
    assert fixes_for(kind("x", code="one_of_tomorrow"))


def test_every_code_with_a_fix_is_documented() -> None:
    """The table names no code that does not exist."""
    documented = set(re.findall(r"`([a-z_]+)`", ERRORS.read_text(encoding="utf-8")))
    assert {*FIXES, *IMPORT_FIXES} - documented == set()


def test_every_command_in_a_fix_exists() -> None:
    """Advice that names a command names one that there is."""
    fixes = [fix for table in (FIXES, IMPORT_FIXES) for given in table.values() for fix in given]
    words = [shlex.split(fix) for fix in fixes if fix.startswith("stepkeep ")]
    assert {each[1] for each in words} <= set(COMMANDS)


def test_several_codes_give_each_fix_once() -> None:
    """In the order of the codes; what has no code has no fix."""
    codes = [errors.INTEGRITY_MISMATCH, None, errors.SCHEMA_INVALID, errors.INTEGRITY_MISMATCH]
    found = fixes_for_codes(codes, session="run")
    assert found[0] == "stepkeep verify run"
    assert len(found) == len(set(found))
