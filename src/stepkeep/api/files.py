"""The project files of a session: which tree is meant, and the calls behind the methods of `Session`.

What the calls need is imported when they are made: most programs never capture files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from stepkeep.config import Settings
from stepkeep.engine import Engine, Pending, Save
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.history import refs
from stepkeep.model import Header
from stepkeep.model import Session as SessionInfo
from stepkeep.workspace import background

if TYPE_CHECKING:
    from stepkeep.workspace.capture import Limits
    from stepkeep.workspace.changed import CodeChanges
    from stepkeep.workspace.compare import FileComparison
    from stepkeep.workspace.patches import CommitPatches
    from stepkeep.workspace.recorded import CapturedFiles
    from stepkeep.workspace.restore import FilesRestored

Workspace: TypeAlias = bool | str | os.PathLike[str] | None
"""A directory; True for that of the session, or else the current one; None for that of the session."""


MAX_PATCH_BYTES: Final = 1_000_000
"""How large the patches in a recovery point may be together."""


class CodeAt(NamedTuple):
    """The commit of captured files, the patches from there to them, and what a person has to do instead."""

    commit: str | None = None
    patches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Files:
    """The files of one session. `default` is the directory that its user named for it."""

    def __init__(
        self, engine: Engine, uid: str, settings: Settings | None, default: Workspace = None
    ) -> None:
        self._engine = engine
        self._uid = uid
        self._settings = settings
        self._default = None if default in (None, False) else root_of(default)

    # --- saving

    def root_to_capture(self, given: Workspace) -> str | None:
        """The tree a save captures: none unless it is named, here or for the session."""
        if given is None:
            return self._default
        if given is True:
            return self._default or root_of(Path.cwd())
        return None if given is False else root_of(given)

    def save(self, save: Save, root: str | None) -> Header:
        """Store a save, with a tree if one is to be captured, after those that were asked for before."""
        background.settle(self._engine)
        return self._engine.save(save) if root is None else self._save(save, root)

    def submit(self, save: Save, root: str | None) -> Pending:
        """The same in the background; the tree is captured there."""
        if root is None:
            background.settle(self._engine)
            return self._engine.submit_in_background(save)
        return background.submit(self._engine, lambda: self._save(save, root))

    def _save(self, save: Save, root: str) -> Header:
        from stepkeep.workspace.known import save_with_files

        return save_with_files(self._engine, save, root, limits=self._limits)[0]

    # --- looking back

    def captured(self, header: Header) -> CapturedFiles:
        from stepkeep.workspace.recorded import CapturedFiles

        return CapturedFiles(self._engine, header)

    def header(self, info: SessionInfo, ref: refs.Ref, zone: tzinfo) -> Header:
        """The checkpoint that a ref means where files are asked for.

        `latest` is the newest of the current line that has files. It is never the one that a restore of files took for
        safety, nor do `latest~2` and `step-5` count those: repeating a restore means the same checkpoint again.
        """
        from stepkeep.workspace.known import is_safety, latest_capture

        if ref == refs.Back(0):
            return latest_capture(self._engine, info)
        return refs.resolve(self._engine, info, ref, zone=zone, passing_over=is_safety)

    def compare(
        self, older: Header, newer: Header | None, *, paths: Iterable[str], workspace: Workspace
    ) -> FileComparison:
        from stepkeep.workspace.compare import compare_files
        from stepkeep.workspace.known import load_manifest, look_at
        from stepkeep.workspace.names import PathFilter

        before, root = load_manifest(self._engine, older), None
        if newer is None:
            root = self._live_root(workspace, before.root)
            after = look_at(self._engine, self._uid, root, limits=self._limits).manifest
        else:
            after = load_manifest(self._engine, newer)
        return msgspec.structs.replace(
            compare_files(before, after, PathFilter(_all_of(paths))), live_root=root
        )

    def patches(self, header: Header, workspace: Workspace) -> CommitPatches:
        from stepkeep.workspace.known import load_manifest
        from stepkeep.workspace.patches import commit_patches

        manifest = load_manifest(self._engine, header)
        return commit_patches(self._engine, manifest, self._repository(workspace, manifest.root))

    def code_at(self, header: Header, workspace: Workspace = None) -> CodeAt:
        """What leads a person to the files of a checkpoint; empty where it has none, or they are in no repository.

        Without a repository that can be read the commit is all there is, and a note says where the rest comes from.
        """
        from stepkeep.workspace.known import has_files, load_manifest
        from stepkeep.workspace.patches import commit_patches

        manifest = load_manifest(self._engine, header) if has_files(header) else None
        if manifest is None or manifest.git is None:
            return CodeAt()
        try:
            root = self._repository(workspace, manifest.root)
            found = commit_patches(self._engine, manifest, root, max_bytes=MAX_PATCH_BYTES)
            if found.is_complete:
                return CodeAt(found.commit, found.patches)
            reason = f"the patches are larger than {MAX_PATCH_BYTES:,} bytes"
        except (InvalidInput, NotFound) as exc:
            if workspace is not None:
                raise
            reason = str(exc)
        note = f"Put the captured files of {header.id} over it, as `stepkeep export --files` writes them: {reason}"
        return CodeAt(manifest.git.commit, notes=(note,))

    def changed(
        self, workspace: Workspace, notify: Callable[[tuple[str, ...], str | None], object] | None
    ) -> CodeChanges | None:
        from stepkeep.workspace.changed import code_changed

        root = self.root_to_capture(True if workspace is None else workspace)
        if root is None:
            return None
        return code_changed(self._engine, self._uid, root, notify=notify, limits=self._limits)

    # --- going back

    def restore(
        self, header: Header, *, paths: Iterable[str], workspace: Workspace, dry_run: bool, force: bool
    ) -> FilesRestored:
        from stepkeep.workspace.known import load_manifest
        from stepkeep.workspace.restore import restore_files

        background.settle(self._engine)
        paths = _all_of(paths)
        root = self._live_root(workspace, load_manifest(self._engine, header).root)
        return restore_files(
            self._engine, header, root, paths=paths, limits=self._limits, dry_run=dry_run, force=force
        )

    def undo(self, info: SessionInfo, *, workspace: Workspace, dry_run: bool, force: bool) -> FilesRestored:
        from stepkeep.workspace.known import load_manifest
        from stepkeep.workspace.restore import last_safety, restore_files

        background.settle(self._engine)
        header, paths = last_safety(self._engine, info)
        root = self._restored_root(workspace, load_manifest(self._engine, header).root)
        return restore_files(
            self._engine, header, root, paths=paths, limits=self._limits, dry_run=dry_run, force=force
        )

    # --- which tree, and how much of it

    def _live_root(self, given: Workspace, recorded: str) -> str:
        """The tree to compare with or to write to. Stored bytes alone never name it (V10).

        The session's own one takes also the files of a tree that is gone: it may have been moved. Files of another one
        that is still there are not meant for it.
        """
        if given in (None, False) and self._default is not None and not Path(recorded).is_dir():
            return self._default
        return self._restored_root(given, recorded)

    def _repository(self, given: Workspace, recorded: str) -> str:
        """Where a commit is looked up. The session's own tree may be any clone that has it."""
        return self._default if given is None and self._default else self._restored_root(given, recorded)

    def _restored_root(self, given: Workspace, recorded: str) -> str:
        """The tree that is named, or else the recorded one, if the session or the current directory stands for it."""
        if given not in (None, True, False):
            return root_of(given)
        if given is True:
            return self._default or root_of(Path.cwd())
        if recorded == self._default:
            return recorded
        here = root_of(Path.cwd())
        if here == recorded or here.startswith(recorded.rstrip("/") + "/"):
            return recorded
        own = "" if self._default is None else f" the session's workspace is {self._default!r},"
        raise InvalidInput(
            f"these are files of {recorded!r},{own} and the current directory is not in there: "
            "name the workspace that is meant",
            code="workspace_not_named",
        )

    @property
    def _limits(self) -> Limits:
        from stepkeep.workspace.capture import DEFAULT_LIMITS, Limits

        if self._settings is None:
            return DEFAULT_LIMITS
        return Limits(
            max_file_bytes=self._settings["workspace.max_file_bytes"],
            max_total_bytes=self._settings["workspace.max_total_bytes"],
            ignore=tuple(self._settings["workspace.ignore"] or ()),
        )


def _all_of(paths: Iterable[str]) -> Iterable[str]:
    """The paths that are meant: a single text is one, not its letters."""
    return (paths,) if isinstance(paths, str) else paths


def root_of(directory: Workspace) -> str:
    """A directory by its one true name.

    Raises:
        InvalidInput: it is none (`invalid_workspace`).
    """
    if directory is None or isinstance(directory, bool):
        directory = Path.cwd()
    path = Path(directory).expanduser()
    if not path.is_dir():
        raise InvalidInput(f"the workspace {str(path)!r} is no directory", code="invalid_workspace")
    return str(path.resolve())
