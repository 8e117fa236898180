"""The parts of a session: capture all of them, put back all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine, NewBody
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import check_name
from stepkeep.parts.port import Part, PartFailed, PartFailure, Validating

Missing: TypeAlias = Literal["error", "keep"]
Extra: TypeAlias = Literal["ignore", "error"]


class PutBack(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts have the data of a checkpoint now.

    `missing` are connected and not in the checkpoint: they stayed as they were. `extra` are in the checkpoint and
    not connected: nobody took them.
    """

    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


class ConnectedParts:
    """Parts by name, in the order in which they were connected. Not safe for threads: its owner locks."""

    def __init__(self, engine: Engine, session: str) -> None:
        self._engine = engine
        self._session = session
        self._parts: dict[str, Part] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parts)

    def connect(self, name: str, part: Part) -> None:
        """Let a part belong to the session under a name.

        Raises:
            InvalidInput: it is none (`not_a_part`), or the name or the part itself is connected already
                (`part_connected`).
        """
        check_name("the name of a part", name)
        if isinstance(part, type) or not _is_part(part):
            raise InvalidInput(
                f"part {name!r} needs the methods snapshot() and restore(data): {type(part).__name__} lacks one",
                code="not_a_part",
                session=self._session,
            )
        taken = name if name in self._parts else self._name_of(part)
        if taken is not None:
            raise InvalidInput(
                f"part {taken!r} is connected already: disconnect it first",
                code="part_connected",
                session=self._session,
            )
        self._parts[name] = part

    def _name_of(self, part: Part) -> str | None:
        return next((name for name, known in self._parts.items() if known is part), None)

    def disconnect(self, name: str) -> None:
        """Let a part go.

        Raises:
            NotFound: there is none of that name (`part_not_connected`).
        """
        if self._parts.pop(name, None) is None:
            raise NotFound(
                f"no part {name!r} is connected: there is {_listed(self._parts)}",
                code="part_not_connected",
                session=self._session,
            )

    # --- capturing

    def capture(self) -> dict[str, Any]:
        """What every part holds, by name.

        Raises:
            PartFailed: one of them raised (`part_snapshot_failed`).
            InvalidInput: none is connected (`no_parts`).
        """
        if not self._parts:
            raise InvalidInput(
                "no part is connected to this session: connect one, or save a state",
                code="no_parts",
                session=self._session,
            )
        return {name: self._snapshot(name, part) for name, part in self._parts.items()}

    def encoded(self) -> NewBody:
        """The same as a body to save; what cannot be saved is `InvalidInput`, with the part first in its path."""
        return self._engine.encode(self.capture())

    def _snapshot(self, name: str, part: Part) -> Any:
        try:
            return part.snapshot()
        except Exception as exc:  # parts are foreign code
            raise PartFailed(
                "nothing was saved, since a part could not say what it holds",
                PartFailure(name, exc),
                code="part_snapshot_failed",
                session=self._session,
            ) from exc

    # --- putting back

    @contextmanager
    def put_back(
        self,
        state: object,
        *,
        missing: Missing = "error",
        extra: Extra = "ignore",
        checkpoint: str | None = None,
    ) -> Iterator[PutBack]:
        """Give every part its data out of a captured state, for as long as the block succeeds.

        All are asked first whether they would take it. When one fails all the same, or the block raises, every part
        is set back to what it held before.

        Raises:
            NotFound: the state lacks a connected part (`part_not_saved`), or one of its parts is not connected
                (`part_not_connected`), and that is to be an error.
            PartFailed: a part refused its data (`part_refused`) or failed to take it (`part_restore_failed`). All
                parts are as before but those that the error names.
        """
        plan = self._plan(state, missing, extra, checkpoint)
        data = state if isinstance(state, Mapping) else {}
        self._validate(plan.restored, data, checkpoint)
        # Encoded and decoded: a part may hand out the very object that it changes later.
        before = exact.decode(*_as_bytes(self.encoded())) if plan.restored else {}
        for at, name in enumerate(plan.restored):
            try:
                self._parts[name].restore(data[name])
            except Exception as exc:
                stuck = self._roll_back(plan.restored[: at + 1], before)
                raise PartFailed(
                    "nothing was restored, since a part could not take its data",
                    PartFailure(name, exc),
                    code="part_restore_failed",
                    not_rolled_back=stuck,
                    session=self._session,
                    checkpoint=checkpoint,
                ) from exc
        try:
            yield plan
        except BaseException as exc:
            for stuck_part in self._roll_back(plan.restored, before):
                exc.add_note(f"going back failed too for {stuck_part}")
            raise

    def _plan(self, state: object, missing: Missing, extra: Extra, checkpoint: str | None) -> PutBack:
        check_choice("missing", missing, get_args(Missing))
        check_choice("extra", extra, get_args(Extra))
        saved = tuple(state) if isinstance(state, Mapping) else ()
        plan = PutBack(
            restored=tuple(name for name in self._parts if name in saved),
            missing=tuple(name for name in self._parts if name not in saved),
            extra=tuple(str(name) for name in saved if name not in self._parts),
        )
        if plan.missing and missing == "error":
            raise NotFound(
                f"the checkpoint has no data of the connected {_listed(plan.missing)}: restore with missing='keep' "
                "to leave that as it is",
                code="part_not_saved",
                session=self._session,
                checkpoint=checkpoint,
            )
        if plan.extra and extra == "error":
            raise NotFound(
                f"the checkpoint has data of {_listed(plan.extra)}, which is not connected: connect it, or restore "
                "with extra='ignore'",
                code="part_not_connected",
                session=self._session,
                checkpoint=checkpoint,
            )
        return plan

    def _validate(self, names: Sequence[str], data: Mapping[Any, Any], checkpoint: str | None) -> None:
        for name in names:
            part = self._parts[name]
            if not isinstance(part, Validating):
                continue
            try:
                part.validate(data[name])
            except Exception as exc:
                raise PartFailed(
                    "nothing was restored, since a part refuses its data",
                    PartFailure(name, exc),
                    code="part_refused",
                    session=self._session,
                    checkpoint=checkpoint,
                ) from exc

    def _roll_back(self, names: Sequence[str], before: Mapping[str, Any]) -> list[PartFailure]:
        """Set parts back, the last one first; those that fail too."""
        stuck = []
        for name in reversed(names):
            try:
                self._parts[name].restore(before[name])
            except Exception as exc:
                stuck.append(PartFailure(name, exc))
        return stuck


def _is_part(part: object) -> bool:
    return all(callable(getattr(part, method, None)) for method in ("snapshot", "restore"))


def _as_bytes(body: NewBody) -> tuple[str, bytes]:
    return body.encoding, body.content


def check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InvalidInput(f"{what} is one of {', '.join(choices)}, not {given!r}", code="invalid_option")


def _listed(names: object) -> str:
    listed = [repr(name) for name in names] if isinstance(names, (tuple, dict)) else []
    return ", ".join(listed[:10]) or "none"
