"""Real repositories for the tests, and how they look from outside."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENVIRON = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_OPTIONAL_LOCKS": "0",
}


def git(root: Path, *words: str, given: bytes | None = None) -> str:
    """Run git, which must succeed; its output."""
    done = subprocess.run(
        ["git", *words], cwd=root, env=ENVIRON, input=given, capture_output=True, check=False
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.decode("utf-8", "surrogateescape")


def init(root: Path) -> Path:
    git(root, "init", "-q", "-b", "main")
    return root


def commit(root: Path, message: str = "work") -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message, "--allow-empty")
    return git(root, "rev-parse", "HEAD").strip()


def outside_view(root: Path) -> tuple[object, ...]:
    """Everything a capture must leave alone: status, refs, stash, the index byte for byte, and all objects."""
    folder = root / git(root, "rev-parse", "--git-dir").strip()
    index = folder / "index"
    return (
        git(root, "status", "--porcelain", "--ignored"),
        git(root, "for-each-ref"),
        git(root, "stash", "list"),
        index.read_bytes() if index.exists() else b"",
        index.stat().st_mtime_ns if index.exists() else 0,
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
    )
