"""The exception tree and the reason codes.

```
StepkeepError
├── NotFound(LookupError)     no such session, branch or checkpoint
├── Conflict                  someone wrote first: reload, then retry
├── Corrupt                   bytes do not match their digest: never retry, run verify
├── BackendUnavailable        connection, lock time-out, disk: `.retryable` says whether to repeat
├── Unsupported               a capability or format version this build lacks
└── InvalidInput(ValueError)  the caller's mistake, found before any write
```

Every error carries a stable `.code`. Surfaces derive exit codes and answers from it, never from the message.
"""

from __future__ import annotations

from typing import Final

# Reason codes named by the specifications. They are codes of this tree like any other.
SCHEMA_INVALID: Final = "checkpoint_schema_invalid"
INTEGRITY_MISMATCH: Final = "checkpoint_integrity_mismatch"
WRITE_FAILED: Final = "checkpoint_atomic_write_failed"
NOT_WRITABLE: Final = "store_not_writable"
LATEST_STALE: Final = "checkpoint_latest_stale"
CHECKSUM_MISSING: Final = "checkpoint_checksum_missing"
PRUNE_FAILED: Final = "checkpoint_retention_prune_failed"


class StepkeepError(Exception):
    """Base of every error this package raises on purpose.

    `message` says what happened, to which id, and what to do next. `code` is stable text for programs.
    The ids that apply are fields; those that do not are None.
    """

    code: str = "stepkeep_error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool | None = None,
        session: str | None = None,
        branch: str | None = None,
        checkpoint: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable
        self.session = session
        self.branch = branch
        self.checkpoint = checkpoint
        self.path = path


class NotFound(StepkeepError, LookupError):
    """No such session, branch or checkpoint."""

    code = "not_found"


class Conflict(StepkeepError):
    """Someone wrote first. Nothing of this call was stored: reload, then decide again."""

    code = "conflict"
    retryable = True


class Corrupt(StepkeepError):
    """Stored bytes do not match their digest, or have no digest at all."""

    code = INTEGRITY_MISMATCH


class BackendUnavailable(StepkeepError):
    """The store could not be reached or written. Nothing of this call is half stored."""

    code = "backend_unavailable"
    retryable = True


class Unsupported(StepkeepError):
    """This build lacks a capability, or the data has a format version it does not know."""

    code = "unsupported"


def driver_missing(what: str, extra: str, cause: ImportError) -> Unsupported:
    """The error for what needs a package that is not installed: it names the extra that brings it."""
    return Unsupported(
        f"{what} needs a package that is not installed ({cause}): pip install stepkeep[{extra}]",
        code="driver_missing",
    )


class InvalidInput(StepkeepError, ValueError):
    """The caller's mistake, found before any write. `path` names the place inside a state."""

    code = "invalid_input"
