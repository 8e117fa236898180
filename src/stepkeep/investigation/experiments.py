"""Experiments: ideas that are tried on a branch of their own.

An experiment is a branch of the session, and what is known of it is kept with that branch. So it is the same whichever
branch the session is on, and travelling in time does not undo it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import NotFound
from stepkeep.history import branches
from stepkeep.model import MAIN_BRANCH, Branch, BranchState, Header, check_text

_KEY: Final = "experiment"
_ABOUT: Final = ("description", "hypothesis", "criteria", "results")
"""What the metadata of a branch has under that key."""


class ExperimentStatus(StrEnum):
    ACTIVE = "active"
    MERGED = "merged"
    ABANDONED = "abandoned"
    ARCHIVED = "archived"


class ExperimentBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of the session, with what is tried there. Its name is its id."""

    name: str
    created_us: int
    status: ExperimentStatus
    parent: str | None = None
    base: str | None = None
    head: str | None = None
    description: str = ""
    hypothesis: str | None = None
    criteria: str = ""
    results: str = ""


class Experiments(msgspec.Struct, frozen=True, kw_only=True):
    """All branches at one moment, and the current one."""

    current: str = MAIN_BRANCH
    branches: tuple[ExperimentBranch, ...] = ()


class ExperimentManager:
    """The branches of a session as experiments. It changes branches, never what an investigator holds."""

    def __init__(self, engine: Engine, session: str) -> None:
        self._engine = engine
        self._session = session

    def current(self) -> str:
        return self._engine.backend.session(self._session).branch

    def get(self, name: str) -> ExperimentBranch:
        return _experiment(branches.find(self._engine, self._session, name))

    def list_branches(self) -> tuple[ExperimentBranch, ...]:
        return tuple(_experiment(each) for each in self._engine.backend.branches(self._session))

    def all(self) -> Experiments:
        return Experiments(current=self.current(), branches=self.list_branches())

    def begin(
        self,
        at: Header,
        name: str,
        *,
        description: str = "",
        hypothesis: str | None = None,
        criteria: str = "",
    ) -> ExperimentBranch:
        """Fork a branch at a checkpoint and go on there."""
        about = {
            "description": check_text("a description", description),
            "hypothesis": hypothesis,
            "criteria": check_text("success criteria", criteria),
        }
        return _experiment(branches.fork(self._engine, at, name, metadata={_KEY: about}))

    def head(self, name: str) -> Header:
        """The header of a branch's newest checkpoint.

        Raises:
            NotFound: there is no such branch, or nothing on it.
        """
        found = branches.find(self._engine, self._session, name)
        if found.head is None:
            raise NotFound(
                f"branch {name!r} has no checkpoint",
                code="checkpoint_not_found",
                session=self._session,
                branch=name,
            )
        return self._engine.header(found.head, session=self._session)

    def note_results(self, name: str, results: str) -> ExperimentBranch:
        """Say what came out of an experiment."""
        found = branches.find(self._engine, self._session, name)
        about = {**found.metadata.get(_KEY, {}), "results": check_text("results", results)}
        metadata = {**found.metadata, _KEY: about}
        return _experiment(branches.change(self._engine, self._session, found, metadata=metadata))

    def close(self, name: str, *, archive: bool = False) -> ExperimentBranch:
        """Abandon an experiment, or archive it."""
        state: Any = BranchState.ARCHIVED if archive else BranchState.ABANDONED
        return _experiment(branches.close(self._engine, self._session, name, state))


def _experiment(branch: Branch) -> ExperimentBranch:
    is_open = branch.state is BranchState.OPEN
    about = branch.metadata.get(_KEY, {})
    return ExperimentBranch(
        name=branch.name,
        created_us=branch.created_us,
        status=ExperimentStatus.ACTIVE if is_open else ExperimentStatus(branch.state.value),
        parent=branch.fork_branch,
        base=branch.fork,
        head=branch.head,
        **{field: about[field] for field in _ABOUT if field in about},
    )
