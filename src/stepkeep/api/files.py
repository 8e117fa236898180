"""The project files that saves of a session captured: look at them, compare, restore and export them.

What the calls need is imported when they are made: most programs never capture files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Final, TypeAlias

from stepkeep.api.options import Ref, ref_of, zone_of
from stepkeep.config import Settings
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import Header
from stepkeep.text import count

if TYPE_CHECKING:
    from stepkeep.recording.recovery import CodeState
    from stepkeep.workspace.bisection import Bisection, BisectStep
    from stepkeep.workspace.capture import CaptureLimits, EarlierCapture, TreeCapture
    from stepkeep.workspace.captured_files import CapturedFiles, FileList, FilesExported, FileVersion
    from stepkeep.workspace.file_diff import CodeChanges, CommitPatches, FilesDiff
    from stepkeep.workspace.file_restore import RestoredFiles, UndoStep
    from stepkeep.workspace.manifest import PathFilter

Workspace: TypeAlias = bool | str | os.PathLike[str] | None
"""A directory; True for that of the session, or else the current one; None for that of the session."""


MAX_PATCH_BYTES: Final = 1_000_000
"""How large the patches in a recovery point may be together."""


class Files:
    """The files of one session. `default` is the directory that its user named for it."""

    def __init__(self, engine: Engine, uid: str, settings: Settings, default: Workspace = None) -> None:
        self._engine = engine
        self._uid = uid
        self._settings = settings
        self._memory: dict[str, EarlierCapture] = {}
        self._default = None if default in (None, False) else root_of(default)

    # --- saving

    def root_to_capture(self, given: Workspace) -> str | None:
        """The tree a save captures: none unless it is named, here or for the session."""
        if given is None:
            return self._default
        if given is True:
            return self._default or root_of(True)
        return None if given is False else root_of(given)

    def capture(self, given: Workspace) -> TreeCapture | None:
        """What captures the tree of a save; None where none is named, here or for the session."""
        root = self._default if given is None else self.root_to_capture(given)
        if root is None:
            return None
        from stepkeep.workspace.capture import TreeCapture

        return TreeCapture(self._engine, self._uid, root, limits=self._limits, memory=self._memory)

    # --- looking back

    def at(self, ref: Ref = "latest") -> CapturedFiles:
        """The files that a checkpoint holds; for `latest` those of the newest one that holds any.

        Here and wherever files are asked for, safety checkpoints do not count in `latest`, `latest~2` and `step-5`.

        Raises:
            NotFound: it was saved without (`files_not_captured`).
        """
        from stepkeep.workspace.captured_files import CapturedFiles

        return CapturedFiles(self._engine, self._header(ref))

    def _header(self, ref: Ref) -> Header:
        """The checkpoint that a ref means where files are asked for: repeating a restore means the same one again."""
        from stepkeep.history import refs
        from stepkeep.workspace.captured_files import is_safety, latest_capture

        info, zone = self._engine.backend.session(self._uid), zone_of(self._settings)
        parsed = ref_of(ref, now_us=self._engine.clock(), zone=zone)
        if parsed == refs.CheckpointRef("back"):
            return latest_capture(self._engine, info)
        return refs.resolve(self._engine, info, parsed, zone=zone, passing_over=is_safety)

    def list(self, ref: Ref = "latest", paths: Iterable[str] = (), *, limit: int | None = None) -> FileList:
        """The files that a checkpoint holds, all or those at and below some paths, and what it left out.

        At most `limit` of them are named; all are counted.

        Raises:
            NotFound: it was saved without (`files_not_captured`), or has none at or below a path (`file_not_found`).
        """
        from stepkeep.workspace.captured_files import file_list

        header = self._header(ref)
        return file_list(self._engine, header, self._named(header, paths), limit=limit)

    def read(self, path: str, ref: Ref = "latest") -> bytes:
        """The content of one file of a checkpoint, verified; of a link its target.

        Raises:
            NotFound: the checkpoint has no such file (`file_not_found`).
        """
        header = self._header(ref)
        return self.at(header.id).read(self._named(header, [path]).paths[0])

    def log(self, path: str, *, ref: Ref = "latest", limit: int | None = None) -> tuple[FileVersion, ...]:
        """Where one file changed on the way to a checkpoint, newest first, followed through its renames.

        Raises:
            NotFound: no capture on that way has it (`file_not_found`).
        """
        from stepkeep.workspace.captured_files import file_log

        header = self._header(ref)
        session, name = self._engine.backend.session(self._uid), self._named(header, [path]).paths[0]
        return file_log(self._engine, session, header, name, limit=limit)

    def _named(self, header: Header, paths: Iterable[str]) -> PathFilter:
        """Paths below the root, as a manifest has them."""
        from stepkeep.workspace.captured_files import load_manifest
        from stepkeep.workspace.file_restore import as_named
        from stepkeep.workspace.manifest import PathFilter

        manifest = load_manifest(self._engine, header)
        return PathFilter(as_named(_all_of(paths), manifest, manifest.root))

    def diff(
        self,
        older: Ref | None = None,
        newer: Ref | None = None,
        *,
        paths: Iterable[str] = (),
        workspace: Workspace = None,
        line_counts: bool = False,
        patch: bool = False,
    ) -> FilesDiff:
        """Which files differ between two checkpoints; without `newer`, between one and the files as they are now.

        Without `older` it is the checkpoint with files before `newer`; without both, the newest that has files. With
        `line_counts` each change says how many lines it adds and removes, with `patch` the result has the whole
        difference as text for `git apply`.

        Raises:
            NotFound: one of them has no files. InvalidInput: it is not clear where the files are now.
        """
        from stepkeep.workspace.capture import capture_live
        from stepkeep.workspace.captured_files import capture_before
        from stepkeep.workspace.file_diff import files_diff
        from stepkeep.workspace.manifest import PathFilter

        after = None if newer is None else self._header(newer)
        if older is None and after is not None:
            before = capture_before(self._engine, self._engine.backend.session(self._uid), after)
        else:
            before = self._header("latest" if older is None else older)
        live = None
        if after is None:
            root = self._live_root(workspace, self._recorded_root(before))
            live = capture_live(self._engine, self._uid, root, limits=self._limits).manifest
        return files_diff(
            self._engine,
            before,
            after,
            live=live,
            wanted=PathFilter(_all_of(paths)),
            line_counts=line_counts,
            patch=patch,
        )

    def patches(self, ref: Ref = "latest", *, workspace: Workspace = None) -> CommitPatches:
        """The commit of a checkpoint's files, and the patches for `git apply` that lead from there to them.

        Raises:
            NotFound: the checkpoint has no files, or the repository not that commit (`commit_not_found`).
        """
        from stepkeep.workspace.captured_files import load_manifest
        from stepkeep.workspace.file_diff import commit_patches

        manifest = load_manifest(self._engine, self._header(ref))
        return commit_patches(self._engine, manifest, self._repository(workspace, manifest.root))

    def export(
        self, ref: Ref = "latest", *, output: str | os.PathLike[str] | IO[bytes], force: bool = False
    ) -> FilesExported:
        """Write the files of a checkpoint as a tar archive: to a file, whole or not at all, or to a stream.

        The same checkpoint gives the same bytes. An existing file is replaced only with `force`.

        Raises:
            NotFound: the checkpoint has no files.
            InvalidInput: there is a file of that name (`file_exists`).
            Corrupt: a file is damaged; what was written to a stream so far is not a whole archive.
        """
        from stepkeep.workspace.captured_files import export_tar

        return export_tar(self._engine, self._header(ref), output, force=force)

    def code_at(self, header: Header, workspace: Workspace = None) -> tuple[CodeState, tuple[str, ...]]:
        """What leads a person to the files of a checkpoint; empty where it has none.

        Without a repository that can be read the commit is all there is, if that, and a note says where the rest comes
        from.
        """
        from stepkeep.recording.recovery import CodeState
        from stepkeep.workspace.captured_files import has_files, load_manifest
        from stepkeep.workspace.file_diff import commit_patches
        from stepkeep.workspace.manifest import to_text

        manifest = load_manifest(self._engine, header) if has_files(header) else None
        if manifest is None:
            return CodeState(), ()
        if manifest.git is None:
            files = f"{count(len(manifest.entries), 'captured file')} of {to_text(manifest.root)}"
            restore = f"stepkeep restore{self._store_named()} {header.id} --files"
            return CodeState(), (f"Bring back {files}, as `{restore}` does",)
        try:
            root = self._repository(workspace, manifest.root)
            found = commit_patches(self._engine, manifest, root, max_bytes=MAX_PATCH_BYTES)
            if found.is_complete:
                return CodeState(commit=found.commit, patches=found.patches), ()
            reason = f"the patches are larger than {MAX_PATCH_BYTES:,} bytes"
        except (InvalidInput, NotFound) as exc:
            if workspace is not None:
                raise
            reason = str(exc)
        export = f"stepkeep export{self._store_named()} {header.id} --files"
        note = f"Put the captured files of {header.id} over it, as `{export}` writes them: {reason}"
        return CodeState(commit=manifest.git.commit), (note,)

    def _store_named(self) -> str:
        """How a printed command names the store; empty where it takes it without a name."""
        from stepkeep.config.store_names import store_option

        return store_option(self._engine.backend.url, self._settings)

    def changed_at(self, header: Header) -> tuple[str | None, tuple[str, ...]]:
        """The commit of a checkpoint's files, and which paths differ from the capture before on the way to it."""
        from stepkeep.workspace.captured_files import capture_before, load_manifest
        from stepkeep.workspace.file_diff import compare_files
        from stepkeep.workspace.manifest import PathFilter, to_text

        git = load_manifest(self._engine, header).git
        try:
            before = capture_before(self._engine, self._engine.backend.session(self._uid), header)
            older, newer = (load_manifest(self._engine, each) for each in (before, header))
            paths = tuple(to_text(each.path) for each in compare_files(older, newer, PathFilter())[0])
        except NotFound:
            paths = ()
        return None if git is None else git.commit, paths

    def changed(
        self,
        notify: Callable[[tuple[str, ...], str | None], object] | None = None,
        *,
        workspace: Workspace = None,
    ) -> CodeChanges | None:
        """What changed in the project since its newest capture, None if nothing; `notify` gets paths and commit."""
        from stepkeep.workspace.file_diff import code_changed

        root = self.root_to_capture(True if workspace is None else workspace)
        if root is None:
            return None
        return code_changed(self._engine, self._uid, root, notify=notify, limits=self._limits)

    def bisect(
        self,
        command: Sequence[str],
        *,
        good: Ref | None = None,
        bad: Ref = "latest",
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        on_step: Callable[[BisectStep], object] | None = None,
    ) -> Bisection:
        """Find the first checkpoint on the way to `bad`, from `good` or the oldest on, at whose files a command fails.

        Each try writes the files of a checkpoint to a new scratch folder and runs the command there, in `folder` below
        it; store and project are only read. Exit code 0 passes, 125 skips, any other fails, as does one that takes too
        long. The command finds `STEPKEEP_SESSION`, `STEPKEEP_CHECKPOINT` and `STEPKEEP_WORKSPACE`, the project's own
        folder, in its environment, which is else this process's unless it is given. `on_step` is told of each try.

        Raises:
            NotFound: no checkpoint there has files (`files_not_captured`).
            InvalidInput: the command cannot be run (`command_not_found`).
        """
        from stepkeep.workspace.bisection import bisect

        return bisect(
            self._engine,
            self._engine.backend.session(self._uid),
            command,
            good=None if good is None else self._header(good),
            bad=self._header(bad),
            folder=folder,
            environment=os.environ if environment is None else environment,
            timeout_seconds=timeout_seconds,
            on_step=on_step,
        )

    # --- going back

    def restore(
        self,
        ref: Ref,
        paths: Iterable[str] = (),
        *,
        workspace: Workspace = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> RestoredFiles:
        """Make the project files, or these paths, what they were at a checkpoint; the state stays as it is.

        A safety checkpoint is taken first. Every file is replaced whole, and files that are not captured are never
        touched. A dry run only tells what would change.

        Raises:
            NotFound: the checkpoint has no files, or not these.
            Conflict: files changed since the newest capture (`files_changed`): use `force`, or save first.
            BackendUnavailable: the files cannot be prepared (`files_not_restored`), and nothing changed; or they are
                in place, but a loss of power may take some back (`files_not_durable`).
        """
        header = self._header(ref)
        root = self._recorded_root(header)
        return self._restore(header, self._live_root(workspace, root), _all_of(paths), dry_run, force)

    def undo(
        self, *, workspace: Workspace = None, dry_run: bool = False, force: bool = False
    ) -> RestoredFiles:
        """Take the last restore of files back, in the tree that was restored, then the one before it.

        When all are taken back, undoing once more does the last one again.

        Raises:
            NotFound: there was none (`nothing_to_undo`).
            InvalidInput: it is not clear that this tree is meant (`workspace_not_named`).
            Conflict: files changed since (`files_changed`).
        """
        from stepkeep.workspace.file_restore import last_step

        step = last_step(self._engine, self._engine.backend.session(self._uid), files_only=True)
        return self.take_back(step, workspace=workspace, dry_run=dry_run, force=force)

    def take_back(
        self,
        step: UndoStep,
        *,
        workspace: Workspace = None,
        anywhere: bool = False,
        dry_run: bool = False,
        force: bool = False,
    ) -> RestoredFiles:
        """Let the files be as they were before a step, `anywhere` from where that is asked for; see `undo`."""
        from stepkeep.workspace.file_restore import safety_of

        header, paths = safety_of(self._engine, self._engine.backend.session(self._uid), step)
        recorded = self._recorded_root(header)
        root = recorded if anywhere else self._restored_root(workspace, recorded)
        return self._restore(header, root, paths, dry_run, force, is_undo=step.takes_back, must_exist=False)

    def _restore(
        self,
        header: Header,
        root: str,
        paths: Iterable[str],
        dry_run: bool,
        force: bool,
        *,
        is_undo: bool = False,
        must_exist: bool = True,
    ) -> RestoredFiles:
        from stepkeep.workspace.file_restore import restore_files

        self._engine.flush()  # what is captured now must not come after this
        return restore_files(
            self._engine,
            header,
            root,
            paths=paths,
            limits=self._limits,
            dry_run=dry_run,
            force=force,
            is_undo=is_undo,
            must_exist=must_exist,
        )

    def _recorded_root(self, header: Header) -> str:
        from stepkeep.workspace.captured_files import load_manifest

        return load_manifest(self._engine, header).root

    # --- which tree, and how much of it

    def _live_root(self, given: Workspace, recorded: str) -> str:
        """The tree to compare with or to write to. Stored bytes alone never name it (V10).

        The session's own one takes also the files of a tree that is gone: it may have been moved. Files of another one
        that is still there are not meant for it.
        """
        from pathlib import Path

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
            return self._default or root_of(True)
        if recorded == self._default:
            return recorded
        here = root_of(True)
        if here == recorded or here.startswith(recorded.rstrip("/") + "/"):
            return recorded
        own = "" if self._default is None else f" the session's workspace is {self._default!r},"
        raise InvalidInput(
            f"these are files of {recorded!r},{own} and the current directory is not in there: "
            "name the workspace that is meant",
            code="workspace_not_named",
        )

    @property
    def _limits(self) -> CaptureLimits:
        from stepkeep.workspace.capture import CaptureLimits

        return CaptureLimits(
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
        InvalidInput: it is not a directory (`invalid_workspace`).
    """
    from pathlib import Path  # most saves capture no files, and the import takes longer than they do

    if directory is None or isinstance(directory, bool):
        directory = Path.cwd()
    path = Path(directory).expanduser()
    if not path.is_dir():
        raise InvalidInput(f"the workspace {str(path)!r} is not a directory", code="invalid_workspace")
    return str(path.resolve())
