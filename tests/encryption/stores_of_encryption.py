"""Encrypted stores for tests, and a look at what is really stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

import stepkeep

KEY = b"a key file of thirty-two bytes.."
MARK = "XQZ-marker-7"
"""A text that no store has by chance."""


def opened(path: Path, **options: Any) -> stepkeep.Store:
    return stepkeep.open(f"sqlite:{path}", config=stepkeep.Settings({}), **{"key": KEY, **options})


def rows(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a connection of its own finds, or does."""
    connection = apsw.Connection(str(path))
    try:
        return list(connection.execute(sql, values))
    finally:
        connection.close()


def cells(path: Path) -> Iterator[tuple[str, Any]]:
    """Every value of every table."""
    for (table,) in rows(
        path, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ):
        for row in rows(path, f"SELECT * FROM {table}"):
            for value in row:
                yield table, value


def marked_files(folder: Path) -> list[str]:
    """The files below a folder that hold the mark, in their content or name, in any usual spelling."""
    spellings = [MARK.encode(), MARK.encode("utf-16-le"), MARK.encode().hex().encode()]
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if MARK in str(file) or (file.is_file() and any(each in file.read_bytes() for each in spellings))
    ]
