"""A folder for each test, without the configuration of the person who runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.flows import Flows


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Flows(tmp_path / "work")
