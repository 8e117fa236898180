"""The power fails after any call: everything that was not synced is there, half there, zeros, or not there at all.

A recording is replayed in memory. Files hold data operations, directories hold entry operations. A sync of a file
makes its data durable, but not its name; a sync of a directory makes its entries durable. What a failed sync should
have made durable never becomes so. After each call that changes something, combinations of the operations that are
not durable yet are written out as a store, which is then judged with what was acknowledged so far.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from tests.crash import tracing
from tests.crash.points import ATTEMPTS, Outcome, Scene, representative
from tests.crash.tracing import Call

Fate = Literal["absent", "whole", "torn", "zeroed"]
METHOD, SYNCS = "power loss", "failed sync, power loss"
_SECTOR = 512


@dataclass(eq=False)
class File:
    base: bytes = b""
    size: int = 0


@dataclass(eq=False)
class Directory:
    base: dict[str, File | Directory] = field(default_factory=dict)
    live: dict[str, File | Directory] = field(default_factory=dict)


@dataclass(eq=False)
class Write:
    file: File
    offset: int
    data: bytes
    fates: tuple[Fate, ...] = ("absent", "whole", "torn", "zeroed")
    is_durable: bool = False
    is_doomed: bool = False


@dataclass(eq=False)
class Truncate:
    file: File
    size: int
    fates: tuple[Fate, ...] = ("absent", "whole")
    is_durable: bool = False
    is_doomed: bool = False


@dataclass(eq=False)
class Entries:
    """Names that change together, in one or two directories."""

    changes: list[tuple[Directory, str, File | Directory | None]]
    fates: tuple[Fate, ...] = ("absent", "whole")
    is_durable: bool = False
    is_doomed: bool = False


Op = Write | Truncate | Entries

Tree = dict[str, tuple[int, bytes] | None]
"""Files by path, each with its number and bytes; None is a directory. Names of one number are links."""


class Disk:
    """What calls did to a directory, and what of it would survive."""

    def __init__(self, root: Path, seed: Path) -> None:
        self._prefix = str(root)
        self.top = _loaded(seed)
        self.ops: list[Op] = []
        self._open: dict[int, tuple[File | Directory, int]] = {}

    # --- replaying

    def apply(self, call: Call) -> bool:
        """Take a call up; True if it changed or synced something."""
        if call.result in ("?", "") or (call.value < 0 and call.name not in ("fsync", "fdatasync")):
            return False
        handler = getattr(self, f"_{call.name}", None)
        return bool(handler and handler(call))

    def _find(self, path: str) -> tuple[Directory, str] | None:
        """The directory and the name of a path below the root."""
        path = os.path.normpath(path)
        if not path.startswith(self._prefix + "/"):
            return None
        node: File | Directory = self.top
        *parents, name = path[len(self._prefix) + 1 :].split("/")
        for part in parents:
            assert isinstance(node, Directory)
            if part not in node.live:
                return None
            node = node.live[part]
        return (node, name) if isinstance(node, Directory) else None

    def _node(self, path: str) -> File | Directory | None:
        if os.path.normpath(path) == self._prefix:
            return self.top
        found = self._find(path)
        return None if found is None else found[0].live.get(found[1])

    def _add(self, op: Op) -> bool:
        self.ops.append(op)
        if isinstance(op, Entries):
            for directory, name, node in op.changes:
                if node is None:
                    directory.live.pop(name, None)
                else:
                    directory.live[name] = node
        elif isinstance(op, Write):
            op.file.size = max(op.file.size, op.offset + len(op.data))
        else:
            op.file.size = op.size
        return True

    def _openat(self, call: Call) -> bool:
        path, descriptor = call.path, call.value
        self._open.pop(descriptor, None)
        found = self._find(path)
        node = self._node(path)
        changed = False
        if node is None and found is not None and "O_CREAT" in call.args[2]:
            node = File()
            changed = self._add(Entries([(*found, node)]))
        if isinstance(node, File) and "O_TRUNC" in call.args[2] and node.size:
            changed = self._add(Truncate(node, 0))
        if node is not None:
            is_appended = "O_APPEND" in call.args[2]
            self._open[descriptor] = node, node.size if isinstance(node, File) and is_appended else 0
        return changed

    def _fcntl(self, call: Call) -> bool:
        if "F_DUPFD" in call.args[1]:
            opened = self._open.get(_descriptor(call))
            if opened is not None:
                self._open[call.value] = opened
        return False

    def _close(self, call: Call) -> bool:
        self._open.pop(_descriptor(call), None)
        return False

    def _file(self, call: Call) -> File | None:
        node = self._open.get(_descriptor(call), (None, 0))[0]
        return node if isinstance(node, File) else None

    def _write(self, call: Call) -> bool:
        file = self._file(call)
        if file is None:
            return False
        at = self._open[_descriptor(call)][1]
        self._open[_descriptor(call)] = file, at + call.value
        return self._add(Write(file, at, call.text(1)[: call.value]))

    def _lseek(self, call: Call) -> bool:
        if (file := self._file(call)) is not None:
            self._open[_descriptor(call)] = file, call.value
        return False

    def _read(self, call: Call) -> bool:
        if (file := self._file(call)) is not None:
            self._open[_descriptor(call)] = file, self._open[_descriptor(call)][1] + call.value
        return False

    def _pwrite64(self, call: Call) -> bool:
        file = self._file(call)
        return file is not None and self._add(Write(file, int(call.args[3]), call.text(1)[: call.value]))

    def _sendfile(self, call: Call) -> bool:
        """Bytes that the kernel copies from one file to another are not in the log: they are taken from the one."""
        file, source = self._file(call), self._open.get(int(call.args[1].split("<")[0]), (None, 0))[0]
        if file is None or not isinstance(source, File) or not call.value:
            return False
        start = int(call.args[2].strip("[").split("]")[0])
        at = self._open[_descriptor(call)][1]
        self._open[_descriptor(call)] = file, at + call.value
        return self._add(Write(file, at, self._content(source)[start : start + call.value]))

    def _content(self, file: File) -> bytes:
        content = bytearray(file.base)
        for op in self.ops:
            if isinstance(op, Write | Truncate) and op.file is file:
                _put(content, op, "whole")
        return bytes(content)

    def _ftruncate(self, call: Call) -> bool:
        file = self._file(call)
        return file is not None and self._add(Truncate(file, int(call.args[1])))

    def _fsync(self, call: Call) -> bool:
        node = self._open.get(_descriptor(call), (None, 0))[0]
        if node is None:
            return False
        for op in self.ops:
            if not op.is_doomed and _is_synced_with(op, node):
                if call.value == 0:
                    op.is_durable = True
                elif not op.is_durable:
                    op.is_doomed = True
        return True

    _fdatasync = _fsync

    def _move(self, old: str, new: str) -> bool:
        source, target, node = self._find(old), self._find(new), self._node(old)
        if source is None or target is None or node is None:
            return False
        return self._add(Entries([(*source, None), (*target, node)]))

    def _rename(self, call: Call) -> bool:
        return self._move(call.text(0).decode(), call.text(1).decode())

    def _renameat(self, call: Call) -> bool:
        return self._move(call.path, _second(call))

    _renameat2 = _renameat

    def _linkat(self, call: Call) -> bool:
        node, target = self._node(call.path), self._find(_second(call))
        return node is not None and target is not None and self._add(Entries([(*target, node)]))

    def _link(self, call: Call) -> bool:
        node, target = self._node(call.path), self._find(call.text(1).decode())
        return node is not None and target is not None and self._add(Entries([(*target, node)]))

    def _unlink(self, call: Call) -> bool:
        found = self._find(call.path)
        return found is not None and self._add(Entries([(*found, None)]))

    _unlinkat = _rmdir = _unlink

    def _mkdir(self, call: Call) -> bool:
        found = self._find(call.path)
        return found is not None and self._add(Entries([(*found, Directory())]))

    _mkdirat = _mkdir

    # --- losing power

    def pending(self) -> list[Op]:
        return [op for op in self.ops if not op.is_durable]

    def after(self, fates: dict[int, Fate]) -> Tree:
        """What is on the disk, by path. `fates` are those of the operations that are not durable."""
        entries: dict[int, dict[str, File | Directory]] = {}
        contents: dict[int, bytearray] = {}
        for op in self.ops:
            fate = "whole" if op.is_durable else fates[id(op)]
            if fate == "absent":
                continue
            if isinstance(op, Entries):
                for directory, name, node in op.changes:
                    names = entries.setdefault(id(directory), dict(directory.base))
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
                continue
            content = contents.setdefault(id(op.file), bytearray(op.file.base))
            _put(content, op, fate)
        found: Tree = {}
        self._collect(self.top, "", entries, contents, found)
        return found

    def _collect(
        self,
        directory: Directory,
        path: str,
        entries: dict[int, dict[str, File | Directory]],
        contents: dict[int, bytearray],
        found: Tree,
    ) -> None:
        for name, node in entries.get(id(directory), directory.base).items():
            below = f"{path}{name}"
            if isinstance(node, Directory):
                found[below] = None
                self._collect(node, f"{below}/", entries, contents, found)
            elif not name.endswith("-shm"):  # memory that processes share: it does not outlive them
                found[below] = id(node), bytes(contents.get(id(node), node.base))


def _loaded(path: Path) -> Directory:
    directory = Directory()
    for child in sorted(path.iterdir()):
        if child.is_dir():
            node: File | Directory = _loaded(child)
        else:
            data = child.read_bytes()
            node = File(data, len(data))
        directory.base[child.name] = directory.live[child.name] = node
    return directory


def _descriptor(call: Call) -> int:
    return int(call.args[0].split("<")[0])


def _second(call: Call) -> str:
    return os.path.join(call.path_of(2), call.text(3).decode())  # noqa: PTH118


def _is_synced_with(op: Op, node: File | Directory) -> bool:
    if isinstance(op, Entries):
        return any(directory is node for directory, _, _ in op.changes)
    return op.file is node


def _put(content: bytearray, op: Write | Truncate, fate: Fate) -> None:
    if isinstance(op, Truncate):
        del content[op.size :]
        content.extend(bytes(op.size - len(content)))
        return
    data = op.data
    if fate == "zeroed":
        data = bytes(len(data))
    elif fate == "torn":
        half = len(data) // 2
        data = data[: half - half % _SECTOR if half >= _SECTOR else half]
    if len(content) < op.offset:
        content.extend(bytes(op.offset - len(content)))
    content[op.offset : op.offset + len(data)] = data


def fates_of(pending: list[Op], limit: int, chooser: random.Random) -> Iterator[dict[int, Fate]]:
    """Combinations of what becomes of operations: all of them, or the most telling and then random ones."""
    size = 1
    for op in pending:
        size *= len(op.fates)
    if size <= limit:
        for chosen in product(*(op.fates for op in pending)):
            yield dict(zip(map(id, pending), chosen, strict=True))
        return
    yield from _telling(pending, limit, chooser)


def _telling(pending: list[Op], limit: int, chooser: random.Random) -> Iterator[dict[int, Fate]]:
    all_whole: dict[int, Fate] = {id(op): "whole" for op in pending}
    all_absent: dict[int, Fate] = {id(op): "absent" for op in pending}
    yield all_absent
    yield all_whole
    last = pending[-1]
    for fate in last.fates:
        yield {**all_whole, id(last): fate}
    yield {**all_absent, id(last): "whole"}
    one = chooser.choice(pending)
    yield {**all_whole, id(one): "absent"}
    yield {**all_absent, id(one): "whole"}
    for _ in range(limit - 8):
        yield {id(op): chooser.choice(op.fates) for op in pending}


def materialise(root: Path, found: Tree) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    first: dict[int, Path] = {}
    for name, content in found.items():
        path = root / name
        if content is None:
            path.mkdir(mode=0o700)
        elif content[0] in first:
            path.hardlink_to(first[content[0]])
        else:
            path.write_bytes(content[1])
            path.chmod(0o600)
            first[content[0]] = path


def _digest(found: Tree, said: list[str]) -> bytes:
    sha = hashlib.sha256(repr(said).encode())
    for name, content in sorted(found.items()):
        sha.update(name.encode() + b"\0" + (b"/" if content is None else hashlib.sha256(content[1]).digest()))
    return sha.digest()


def as_replayed(scene: Scene) -> dict[str, bytes]:
    """The files after the whole recording, by the model; to be compared with those that are there."""
    disk = Disk(scene.root, scene.seed)
    for call in scene.recording.calls:
        disk.apply(call)
    found = disk.after({id(op): "whole" for op in disk.pending()})
    return {name: content[1] for name, content in found.items() if content is not None}


def replay(
    scene: Scene,
    calls: list[Call],
    *,
    limit: int,
    every: int = 1,
    seed: int = 1,
    stop_at: int = 20,
    only_told: bool = False,
    run: int | None = None,
) -> Outcome:
    """Lose power after each call, in up to `limit` ways each; equal stores are judged once.

    With `only_told` it fails only when something was acknowledged, or a call returned. With `run`, only after so many
    of a longer row of like calls.
    """
    outcome = Outcome()
    looked_at = set(map(id, representative(_changing(scene, calls), run)))
    disk, chooser = Disk(scene.root, scene.seed), random.Random(seed)
    seen: set[bytes] = set()
    said: list[str] = []
    position = 0
    target = scene.folder / "root"
    for call in calls:
        if line := _said(call):
            said = [*said, *line]
            changed = any(each.startswith(("ACK", "OK")) for each in line)
        else:
            changed = disk.apply(call) and id(call) in looked_at
            position += changed
        if not changed or (not line and (only_told or position % every)):
            continue
        pending = disk.pending()
        for fates in fates_of(pending, limit, chooser):
            found = disk.after(fates)
            digest = _digest(found, said)
            if digest in seen:
                continue
            seen.add(digest)
            materialise(target, found)
            outcome.note(f"after {call.name} {call.number}", scene.judge(said))
            if len(outcome.violations) >= stop_at:
                return outcome
    return outcome


def _changing(scene: Scene, calls: list[Call]) -> list[Call]:
    """The calls that change or sync something."""
    disk = Disk(scene.root, scene.seed)
    return [call for call in calls if disk.apply(call)]


def _said(call: Call) -> list[str]:
    """What the child told the world with this call."""
    if call.name == "write" and call.path.endswith(".said") and call.value > 0:
        return [line for line in call.text(1).decode().splitlines() if line != "BEGIN"]
    return []


def replay_failed_syncs(scene: Scene, *, limit: int, every: int = 1, stop_at: int = 20) -> Outcome:
    """Each sync fails once, the operation is tried again, and after every acknowledgement the power fails."""
    outcome = Outcome()
    syncs = [call for call in scene.calls() if call.name in ("fsync", "fdatasync")]
    for call in syncs[::every]:
        inject = f"{call.name}:error=EIO:when={call.number}"
        run = _recorded_with(scene, inject)
        if run is None:
            outcome.note(inject, None)
            continue
        found = replay(scene, run.calls, limit=limit, only_told=True, stop_at=stop_at)
        outcome.add(found, f"{inject}: ")
        if len(outcome.violations) >= stop_at:
            break
    return outcome


def _recorded_with(scene: Scene, inject: str) -> tracing.Run | None:
    """The calls with a fault; None when it is not reached."""
    for _ in range(ATTEMPTS):
        scene.fresh()
        run = tracing.run(
            scene.operation, scene.kind, scene.root, inject=inject, record=True, bug=scene.bug, again=True
        )
        if run.has_fired:
            return run
    return None
