"""Reading back what was saved, exactly or not at all, and the fallback to an older checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from stepkeep.codec import delta, exact
from stepkeep.codec.compression import compression_named
from stepkeep.codec.integrity import (
    RunningDigest,
    check_content,
    check_stored,
    open_header,
    read_header,
)
from stepkeep.engine.chains import Base
from stepkeep.engine.state_encoder import NewBody
from stepkeep.errors import SCHEMA_INVALID, Corrupt, NotFound, StepkeepError, Unsupported
from stepkeep.logs import Log
from stepkeep.model import STATE, Header, SessionInfo, from_us
from stepkeep.storage.port import Annotation, Backend, Body, HeaderQuery, HeaderRow, StoredHead

log = Log("stepkeep")
fallback_steps = Log("stepkeep.fallback")
"""Each step of a fallback, for who wants to know: one line of `log` sums them up."""

MAX_REDUNDANT: Final = 64
"""How many damaged records in a row are bridged by their redundant deltas."""


MAX_LOADED_BYTES: Final = 2 * delta.DEFAULT_CEILING_BYTES
"""What all bodies of a checkpoint may take together: few compressed bytes must not become any number of large ones."""


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Why a load did not return the newest checkpoint: how many were tried, and what was wrong with each."""

    tried: int
    failures: tuple[tuple[str, str], ...]


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose header and every body were verified. `fallback` is set when newer ones were damaged."""

    header: Header
    contents: dict[str, bytes]
    fallback: Fallback | None = None
    packed: bytes | None = None
    """The state once more as MessagePack, where it is loaded again and again: that is read faster than JSON."""

    def value(self, name: str = STATE) -> Any:
        """The value in a body, decoded anew at each call: changing it changes nothing else."""
        if self.packed is not None and name == STATE:
            return _unpack(self.packed)
        described = self.header.contents[name]
        return exact.decode(described.encoding, self.contents[name], described.first_at)

    def json(self, name: str = STATE) -> bytes:
        """The content of a body that is JSON, with the keys in the order of the value.

        It is decoded even where its bytes are the answer: whoever prints them can rely on it.
        """
        content, first_at = self.contents[name], self.header.contents[name].first_at
        tree = exact.decode(exact.JSON, content, first_at)
        return exact.to_json(tree) if first_at else content

    def body(self, name: str = STATE) -> NewBody | None:
        """A body as it was saved, for another save; None if there is none."""
        content = self.contents.get(name)
        if content is None:
            return None
        described = self.header.contents[name]
        return NewBody(
            content,
            described.encoding,
            first_at=described.first_at,
            count=described.count,
            total_bytes=described.total_bytes,
        )


class Remembered:
    """The newest checkpoint of a branch as this process saved it, for loads while nobody else wrote anything."""

    def __init__(self, row: HeaderRow, bodies: dict[str, NewBody]) -> None:
        self.id, self.seq = row.id, row.seq
        self._raw = row.opened or row.raw
        self._bodies = bodies
        self._loads = 0
        self._packed: bytes | None = None
        self.annotations: dict[str, tuple[int, list[Annotation]]] = {}

    def loaded(self) -> Loaded:
        """The checkpoint, with a header of its own for each caller."""
        header = read_header(self._raw)
        contents = {name: body.content for name, body in self._bodies.items()}
        self._loads += 1
        if self._loads == _MANY_LOADS and header.contents[STATE].encoding == exact.JSON:
            self._packed = _pack(Loaded(header=header, contents=contents).value())
        return Loaded(header=header, contents=contents, packed=self._packed)


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

_MANY_LOADS: Final = 2


def verified(row: HeaderRow) -> Header:
    """The header in a row, if every byte and its place are as they were written."""
    if row.problem is not None:
        raise row.problem
    header = read_header(row.opened) if row.opened else open_header(row.raw, expect_id=row.id)
    if (header.session, header.seq, header.branch) != (row.session, row.seq, row.branch):
        raise Corrupt(
            f"the row of {row.id} is not where it was written", session=row.session, checkpoint=row.id
        )
    return header


def load(backend: Backend, header: Header, known: Base | None = None) -> Loaded:
    """All contents of a checkpoint, each verified against the header.

    A state that is `known` was verified when it was saved or read; then only its own stored record is checked.

    Raises:
        Corrupt: a body is damaged.
        NotFound: the checkpoint was removed meanwhile.
    """
    try:
        _check_contents(header)
        contents = {name: _known(backend, header, name, known) for name in header.contents}
    except Corrupt as exc:
        query = HeaderQuery(session=header.session, ids=(header.id,), limit=1)
        if next(backend.headers(query), None) is None:
            raise NotFound(
                f"{header.id} was removed while it was loaded",
                code="checkpoint_not_found",
                checkpoint=header.id,
            ) from exc
        raise
    return Loaded(header=header, contents=contents)


def _known(backend: Backend, header: Header, name: str, known: Base | None) -> bytes:
    """The content of one body, verified; rebuilt from what is in memory where the record of that still verifies."""
    if known is None or name != STATE:
        return load_body(backend, header, name)
    if known.checkpoint == header.id:
        record = backend.body(header.session, header.id, name)
        links = [] if record is None else [record]
    else:
        chain = backend.body_chain(header.session, header.id, name)
        links = chain[
            : next((at for at, link in enumerate(chain, 1) if link.checkpoint == known.checkpoint), 0)
        ]
    try:
        if links:
            return _above(links, known.content, header, name)
    except Corrupt:
        pass  # from the keyframe up, or from its redundant delta, it may still be found
    return load_body(backend, header, name)


def from_head(head: StoredHead, known: Base | None) -> Loaded | None:
    """The checkpoint in what was read of a head; None when anything about it is not as it should be.

    Of a body whose content is `known`, and was verified when it was saved or read, only the records above it are
    applied; the record of the very same body is still checked.
    """
    try:
        header = verified(head.row)
        _check_contents(header)
        contents: dict[str, bytes] = {}
        for name, expected in header.contents.items():
            links = head.chains[name]
            last = links[-1]
            if known is not None and name == STATE and last.checkpoint == known.checkpoint:
                contents[name] = _above(links, known.content, header, name)
                continue
            if last.base is not None:
                return None
            check_links(links)
            content = delta.rebuild(links)
            check_content(content, expected, checkpoint=header.id, body=name)
            contents[name] = content
    except (StepkeepError, LookupError):
        return None
    return Loaded(header=header, contents=contents)


def _above(links: list[Body], known: bytes, header: Header, name: str) -> bytes:
    """The content at the top of a chain whose lowest record is that of a content in memory; every record is checked."""
    check_links(links)
    expected = header.contents[name]
    if len(links) == 1 and len(known) == expected.size:
        return known
    content = delta.rebuild([*links[:-1], delta.Rebuilt(known)])
    check_content(content, expected, checkpoint=header.id, body=name)
    return content


class Contents(msgspec.Struct):
    """Contents that were loaded and verified here, by their digest: whoever looks through a history does it again.

    A sealed header names the digest, so what is kept under it is what was saved, whoever wrote since. Safe for threads;
    the oldest go first.
    """

    max_bytes: int = 64 * 1024 * 1024
    held_bytes: int = 0
    by_digest: dict[str, bytes] = {}
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def of(self, header: Header) -> Loaded | None:
        """A checkpoint whose contents are all kept."""
        named = header.contents.items()
        contents = {
            name: found for name, each in named if (found := self.by_digest.get(each.digest)) is not None
        }
        return Loaded(header=header, contents=contents) if len(contents) == len(named) else None

    def keep(self, loaded: Loaded) -> None:
        with self.lock:
            for name, content in loaded.contents.items():
                digest = loaded.header.contents[name].digest
                if digest not in self.by_digest:
                    self.by_digest[digest] = content
                    self.held_bytes += len(content)
            while self.held_bytes > self.max_bytes:
                self.held_bytes -= len(self.by_digest.pop(next(iter(self.by_digest))))


def load_many(backend: Backend, headers: Sequence[Header], kept: Contents) -> dict[str, Loaded]:
    """Checkpoints of one session with all their contents, by id. What several share is read and hashed once.

    One that is not as it should be, or was removed meanwhile, is left out: loaded alone it may come from a redundant
    delta, or tells what is wrong.
    """
    found = {header.id: loaded for header in headers if (loaded := kept.of(header)) is not None}
    missing = sorted((each for each in headers if each.id not in found), key=lambda header: header.seq)
    if not missing:
        return found
    records = backend.all_chains(missing[0].session, [header.id for header in missing])
    # Whatever the records say of themselves, each content that is loaded alone has the size that its header names.
    chains = _Chains(records if is_bearable([record.size for record in records]) else [])
    for header in missing:
        with suppress(StepkeepError, LookupError, RecursionError):
            _check_contents(header)
            contents = {name: chains.content(header, name) for name in header.contents}
            found[header.id] = Loaded(header=header, contents=contents)
            kept.keep(found[header.id])
    return found


def _check_contents(header: Header) -> None:
    """Refuse a header that no save made: one without a state, or with more than is loaded at once."""
    if STATE not in header.contents:
        raise Corrupt(f"{header.id} has no state", code=SCHEMA_INVALID, checkpoint=header.id)
    if not is_bearable([content.size for content in header.contents.values()]):
        raise Corrupt(f"{header.id} names more than any checkpoint holds", checkpoint=header.id)


def is_bearable(sizes: Collection[int]) -> bool:
    """Whether contents of these sizes may be in memory at once."""
    return min(sizes, default=0) >= 0 and sum(sizes) <= MAX_LOADED_BYTES


_MIN_SHARED_BYTES: Final = 32 * 1024
"""Smaller contents are hashed sooner than compared."""


class _Chains:
    """Records of several checkpoints, and the contents that were rebuilt from them."""

    def __init__(self, records: list[Body]) -> None:
        self._records = {(body.checkpoint, body.name): body for body in records}
        self._rebuilt: dict[tuple[str, str], bytes] = {}
        self._kept: dict[tuple[str, str], int] = {}  # with how many bytes of its base a content begins
        self._hashed: dict[str, tuple[RunningDigest, str]] = {}  # and of which checkpoint

    def content(self, header: Header, name: str) -> bytes:
        """A content, verified; those of neighbours mostly begin with the same bytes."""
        content, found = self._content(header.id, name), None
        if len(content) >= _MIN_SHARED_BYTES:
            digests, before = self._hashed.get(name) or (RunningDigest(), "")
            self._hashed[name] = digests, header.id
            found = digests.of(content, self._shared(header.id, before, name))
        check_content(content, header.contents[name], checkpoint=header.id, body=name, found=found)
        return content

    def _shared(self, checkpoint: str, before: str, name: str) -> int:
        """With how many bytes of another content one begins, no more than there are; mostly its delta tells."""
        if self._records[checkpoint, name].base == before and (checkpoint, name) in self._kept:
            return self._kept[checkpoint, name]
        return delta.shared_start(self._rebuilt.get((before, name), b""), self._rebuilt[checkpoint, name])

    def _content(self, checkpoint: str, name: str) -> bytes:
        known = self._rebuilt.get((checkpoint, name))
        if known is None:
            record = self._records[checkpoint, name]
            check_links([record])
            base = None if record.base is None else self._content(record.base, name)
            if record.codec == delta.SPLICE and base is not None:
                edits = delta.unpack(record.data, delta.start_of(base))
                known = delta.edited(base, edits)
                self._kept[checkpoint, name] = min(edits[0].keep if edits else len(base), len(known))
            else:
                known = delta.decode(record.codec, record.data, size=record.size, base=base)
            self._rebuilt[checkpoint, name] = known
        return known


def check_body(backend: Backend, header: Header, name: str) -> None:
    """Raise unless the records of a body give what was saved.

    Of one that is encrypted, and cannot be decrypted here, they must be those that were stored.
    """
    links = backend.body_chain(header.session, header.id, name)
    if not header.cipher:
        check_content(from_chain(links), header.contents[name], checkpoint=header.id, body=name)
        return
    _check_complete(links)
    check_links(links)


def load_body(backend: Backend, header: Header, name: str) -> bytes:
    """The content of one body, verified against the header."""
    content = rebuild(backend, header.session, header.id, name)
    check_content(content, header.contents[name], checkpoint=header.id, body=name)
    return content


def rebuild(
    backend: Backend, session: str, checkpoint: str, name: str, *, redundant_left: int = MAX_REDUNDANT
) -> bytes:
    """The content of a body from its records, through the redundant delta of one that is damaged, if it has one.

    The result is what the records say; whether it is what was saved, the digest in the header tells.
    """
    chain = backend.body_chain(session, checkpoint, name)
    try:
        return from_chain(chain)
    except Corrupt:
        intact = _intact(chain)
        lost = chain[len(intact)].checkpoint if len(intact) < len(chain) else _missing(chain, checkpoint)
        redundant = backend.redundant_delta(session, lost, name) if redundant_left else None
        if redundant is None or redundant.base is None:
            raise
    base = rebuild(backend, session, redundant.base, name, redundant_left=redundant_left - 1)
    check_links([redundant])
    content = delta.rebuild([*intact, redundant, delta.Rebuilt(base)])
    log.warning("The record of %s is damaged, its redundant delta served", redundant.checkpoint)
    return content


def _intact(chain: list[Body]) -> list[Body]:
    """The records from the top down to the first that is damaged; without the keyframe, if none of them is."""
    for at, body in enumerate(chain):
        try:
            check_links([body])
        except Corrupt:
            return chain[:at]
    return chain if chain and chain[-1].base is not None else chain[:-1]


def _missing(chain: list[Body], checkpoint: str) -> str:
    """The checkpoint whose record a chain lacks at its end."""
    return (chain[-1].base if chain else None) or checkpoint


def from_chain(links: list[Body]) -> bytes:
    """The content at the top of a chain, after the stored bytes of every link were checked."""
    _check_complete(links)
    check_links(links)
    return delta.rebuild(links)


def _check_complete(links: list[Body]) -> None:
    if not links:
        raise Corrupt("the body is missing")
    if links[-1].base is not None:
        raise Corrupt(
            f"the body of {links[-1].base}, which {links[0].checkpoint} is rebuilt from, is missing"
        )


def check_links(links: list[Body]) -> None:
    """Raise `Corrupt` unless the stored bytes of every record match their digest."""
    for body in links:
        check_stored(body.data, body.digest, checkpoint=body.checkpoint, body=body.name)
        # A newer release says so in the header's version: here another codec or size can only be damage.
        missing = "" if body.codec in delta.CODECS else _missing_algorithm(body.codec)
        if missing or not 0 <= body.size <= delta.DEFAULT_CEILING_BYTES:
            raise Corrupt(
                f"the record of body {body.name!r} of {body.checkpoint} is damaged{missing}",
                checkpoint=body.checkpoint,
            )


def _missing_algorithm(codec: str) -> str:
    """What else than damage an unknown codec can be."""
    name = delta.algorithm_of(codec)
    return "" if compression_named(name) else f", or its compression {name[:40]!r} was not chosen"


# --- the line of a branch, and falling back along it -----------------------------------------------------------


def line_of(
    backend: Backend, session: SessionInfo, branch: str, *, matching: HeaderQuery | None = None
) -> Iterator[HeaderRow]:
    """The stored headers of a branch from its head backwards, followed through its fork points.

    With `matching` only those that its tag, step, status, `until_us` and `max_seq` let through, unverified.
    """
    wanted = HeaderQuery() if matching is None else matching
    record = backend.branch(session.uid, branch)
    max_seq = 0 if record is None else record.head_seq
    seen: set[str] = set()
    while record is not None and record.name not in seen:
        seen.add(record.name)
        last = max_seq if wanted.max_seq is None else min(max_seq, wanted.max_seq)
        yield from backend.headers(
            msgspec.structs.replace(wanted, session=session.uid, branch=record.name, max_seq=last)
        )
        max_seq = record.fork_seq
        record = backend.branch(session.uid, record.fork_branch) if record.fork_branch is not None else None


def load_latest(
    backend: Backend, session: SessionInfo, branch: str, load: Callable[[Header], Loaded]
) -> Loaded | None:
    """The head of a branch, or the newest before it that `load` returns; None when the branch has no checkpoint.

    Raises:
        Corrupt: checkpoints exist and none of them verifies (code `no_valid_checkpoint`).
    """
    head = _head(backend, session, branch)
    while head is not None:
        try:
            loaded = load(_header(backend, session, head))
        except (Corrupt, NotFound) as exc:
            now = _head(backend, session, branch)
            if now != head:
                head = now  # someone saved or removed meanwhile
                continue
            fallback_steps.warning("Latest checkpoint failed to load: %s", exc)
            history = [row for row in line_of(backend, session, branch) if row.id != head]
            return _fall_back(session, (head, exc.code), history, load)
        log.debug("Loaded latest checkpoint")
        return loaded
    return None


def _head(backend: Backend, session: SessionInfo, branch: str) -> str | None:
    record = backend.branch(session.uid, branch)
    return None if record is None else record.head


def _header(backend: Backend, session: SessionInfo, checkpoint: str) -> Header:
    row = next(backend.headers(HeaderQuery(session=session.uid, ids=(checkpoint,), limit=1)), None)
    if row is None:
        raise Corrupt(f"{checkpoint} is missing", code="checkpoint_missing", checkpoint=checkpoint)
    return verified(row)


def _fall_back(
    session: SessionInfo,
    first_failure: tuple[str, str],
    history: list[HeaderRow],
    load: Callable[[Header], Loaded],
) -> Loaded:
    fallback_steps.info("Attempting fallback to %d history checkpoints", len(history))
    failures = [first_failure]
    for number, row in enumerate(history, start=1):
        fallback_steps.debug("Trying history checkpoint %d: %s", number, row.id)
        try:
            loaded = load(verified(row))
        except NotFound:
            continue
        except (Corrupt, Unsupported) as exc:
            fallback_steps.warning("History checkpoint %d failed: %s", number, exc)
            failures.append((row.id, exc.code))
            continue
        moment = f"{from_us(loaded.header.time_us):%Y-%m-%d %H:%M:%S}"
        fallback_steps.warning("Recovered from history checkpoint: %s (%s)", moment, row.id)
        log.warning("Latest checkpoint corrupted, using history checkpoint from %s", moment)
        fallback = Fallback(tried=len(failures) + 1, failures=tuple(failures))
        return msgspec.structs.replace(loaded, fallback=fallback)
    raise Corrupt(
        f"No valid checkpoint found (tried {len(failures)} checkpoints). "
        f"Start session {session.key!r} afresh, or run `stepkeep verify` to see what is damaged.",
        code="no_valid_checkpoint",
        session=session.key,
    )
