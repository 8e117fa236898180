"""The history of commands: what was run where, how it ended, and the beginning and end of what it said."""

from __future__ import annotations

from typing import Any, Final

from stepkeep.investigation.events import Announcer, EventKind
from stepkeep.investigation.records import Clock, Entry, NewId, Records, check_words, new_id

MAX_COMMANDS: Final = 200
MAX_PREVIEW: Final = 2000
_CUT: Final = "\n[…]\n"


class ExecutedCommand(Entry, frozen=True, kw_only=True):
    """`replay` marks what has to be run again to be where it was left, such as starting a server."""

    time_us: int
    command: str
    working_dir: str
    exit_code: int | None
    stdout_preview: str = ""
    stderr_preview: str = ""
    replay: bool = False


class CommandHistory(Announcer):
    """The newest commands, oldest first."""

    def __init__(self, clock: Clock, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._commands = Records(ExecutedCommand, "command", "x", make_id)

    def all(self) -> tuple[ExecutedCommand, ...]:
        return tuple(self._commands)

    def record(
        self,
        command: str,
        *,
        working_dir: str = ".",
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
        replay: bool = False,
        is_announced: bool = True,
    ) -> ExecutedCommand:
        """Note a command that was run; of what it said only previews are kept."""
        added = ExecutedCommand(
            id=self._commands.new_id(),
            time_us=self._clock(),
            command=check_words("a command", command),
            working_dir=working_dir,
            exit_code=exit_code,
            stdout_preview=preview(stdout),
            stderr_preview=preview(stderr),
            replay=replay,
        )
        self._commands.put(added)
        self._commands.keep_newest(MAX_COMMANDS)
        if is_announced:
            self.announce(EventKind.COMMAND_RECORDED, added.id)
        return added

    def snapshot(self) -> dict[str, Any]:
        return self._commands.snapshot()

    def validate(self, data: Any) -> None:
        self._commands.read(data)

    def restore(self, data: Any) -> None:
        self._commands.restore(data)


def preview(text: str, most: int = MAX_PREVIEW) -> str:
    """The beginning and the end of a long text, and text that can be saved whatever it was."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(text) <= most:
        return text
    half = (most - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]
