"""The `/checkpoint` command for coding agents: shipped with the package, installed on request."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepkeep
from stepkeep.recording.coding_agents.installing import command_text, install_command


def test_the_command_is_installed_where_agents_look(tmp_path: Path) -> None:
    """Repeating it is harmless, and so is a folder that exists."""
    path = install_command(tmp_path)
    assert install_command(tmp_path) == path == tmp_path / ".claude" / "commands" / "checkpoint.md"
    assert path.read_text(encoding="utf-8") == command_text()
    assert "stepkeep create" in command_text()


def test_another_file_of_that_name_stays(tmp_path: Path) -> None:
    """Unless it is to be overwritten; a link is replaced, not followed."""
    path = tmp_path / ".claude" / "commands" / "checkpoint.md"
    path.parent.mkdir(parents=True)
    elsewhere = tmp_path / "mine.md"
    elsewhere.write_text("mine", encoding="utf-8")
    path.symlink_to(elsewhere)
    with pytest.raises(stepkeep.InvalidInput) as refused:
        install_command(tmp_path)
    assert refused.value.code == "file_exists"
    install_command(tmp_path, overwrite=True)
    assert elsewhere.read_text(encoding="utf-8") == "mine"
    assert path.read_text(encoding="utf-8") == command_text()


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """It names the path."""
    (tmp_path / ".claude").write_text("a file in the way", encoding="utf-8")
    with pytest.raises(stepkeep.BackendUnavailable, match="commands"):
        install_command(tmp_path)
