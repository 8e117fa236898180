"""How a running workflow looks: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from stepkeep import api
from stepkeep.cli.printing import is_terminal, lines, note
from stepkeep.errors import BackendUnavailable
from stepkeep.model import Header, Status
from stepkeep.text import clean, count, duration, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType


MAX_ERROR: Final = 200


class RunView:
    """A watcher of runs that is shown from `with` to its end. `session` is set once the run began.

    By itself it tells nothing but the session, on stderr: beside JSON, stdout is for the document at the end.
    """

    session: str | None = None

    def begin(self, session: str, workflow: api.Workflow, done: frozenset[str]) -> api.Hooks:  # noqa: ARG002
        self.session = session
        note(_heading(session, workflow))
        return api.Hooks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def progress_for(*, as_json: bool) -> RunView:
    """How to show a run: nothing but a note beside JSON, live on a terminal, else lines."""
    if as_json:
        return RunView()
    return _Live() if is_terminal() else _Lines()


def ending(run: api.WorkflowRun) -> list[str]:
    """What to say when a run is over, and how to go on."""
    done = f"{count(run.steps_run, 'step')} in {duration(run.duration_ms / 1000)}"
    extra = [f"{run.steps_recovered} done before"] * bool(run.steps_recovered)
    extra += [f"{run.steps_skipped} skipped"] * bool(run.steps_skipped)
    texts = [f"{run.status}: {', '.join([done, *extra])}"]
    if run.error is not None and run.status is Status.FAILED:
        texts.append(clean(run.error))
    return texts + ([] if run.resume is None else [f"Go on with: {clean(run.resume)}"])


@contextmanager
def telling_how_to_go_on(progress: RunView, url: str | None) -> Iterator[None]:
    """When the store fails in the middle of a run, say how to go on once it works again. `url` is the one named."""
    try:
        yield
    except BackendUnavailable:
        if progress.session is not None:
            store = "" if url is None else api.store_option(url)
            note(f"Go on with: {api.resume_command(progress.session, store)}")
        raise


def exit_code(run: api.WorkflowRun) -> int:
    """0 when it is completed, 1 when not, and as a shell says it when a signal ended it."""
    if run.status is Status.COMPLETED:
        return 0
    return 1 if run.signal is None else 128 + run.signal


def _hooks(tell: Callable[[str, str, str], None], **more: Any) -> api.Hooks:
    """Hooks that tell the id of a step, what became of it, and a note."""
    return api.Hooks(
        on_step_start=lambda step, attempt: tell(
            step.id, "running", "" if attempt == 1 else f"attempt {attempt}"
        ),
        on_step_complete=lambda step, result: tell(step.id, "completed", duration(result.duration_ms / 1000)),
        on_step_error=lambda step, error, is_retried: tell(
            step.id, "waiting" if is_retried else "failed", _short(error)
        ),
        on_step_skip=lambda step, reason: tell(
            step.id, "skipped" if reason == api.NOT_TRUE else "blocked", _short(reason)
        ),
        on_question=lambda step, question: tell(step.id, "asks", _short(question.text)),
        **more,
    )


def _short(error: object) -> str:
    return shortened(clean(str(error)), MAX_ERROR)


def _heading(session: str, workflow: api.Workflow) -> str:
    return f"Session {clean(session)}: {clean(workflow.name)}, {count(len(workflow.steps), 'step')}"


# --- lines -----------------------------------------------------------------------------------------------------


_LINES: Final = {
    "running": "running, {}",
    "completed": "completed ({})",
    "waiting": "failed, will try again: {}",
    "failed": "failed: {}",
    "skipped": "skipped, {}",
    "blocked": "skipped, {}",
    "asks": "waits for a person: {}",
}


class _Lines(RunView):
    """One line for each thing that happens."""

    def begin(self, session: str, workflow: api.Workflow, done: frozenset[str]) -> api.Hooks:
        self.session, total = session, len(workflow.steps)
        places = {
            step.id: f"[{number}/{total}] {clean(step.name)}"
            for number, step in enumerate(workflow.steps, start=1)
        }
        lines([_heading(session, workflow)])
        lines(f"{place}: done before" for id, place in places.items() if id in done)

        def tell(id: str, status: str, note: str) -> None:
            lines([f"{places[id]}: {_LINES[status].format(note) if note else status}"])

        return _hooks(tell)


# --- live ------------------------------------------------------------------------------------------------------

_MARKS: Final = {
    "waiting": ("·", "dim"),
    "completed": ("✓", "green"),
    "before": ("✓", "dim"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "blocked": ("–", "yellow"),
    "interrupted": ("!", "yellow"),
    "asks": ("?", "yellow"),
}


class _Row:
    """A step as it is shown."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "waiting"
        self.note = ""
        self.started = 0.0


class _Live(RunView):
    """The steps in place: a spinner for what runs, how long it took, and when something was saved last."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._live: Any = None
        self._height = 0
        self._began = time.monotonic()
        self._saved: tuple[int, float] | None = None

    def begin(self, session: str, workflow: api.Workflow, done: frozenset[str]) -> api.Hooks:
        from rich.console import Console
        from rich.live import Live

        self.session = session
        self._rows = {step.id: _Row(clean(step.name)) for step in workflow.steps}
        for id in done & self._rows.keys():
            self._rows[id].status = "before"
        lines([_heading(session, workflow)])
        console = Console(highlight=False)
        self._height = console.height
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            refresh_per_second=8,
            redirect_stderr=sys.stderr.isatty(),  # notes and log lines go above the picture, unless to a file
        )
        self._live.start()
        return _hooks(self._tell, on_checkpoint=self._checkpoint)

    def __exit__(self, *_: object) -> None:
        if self._live is None:
            return
        for row in self._rows.values():
            if row.status == "running":
                row.status, row.note = "interrupted", "interrupted"
        self._live.stop()

    def _tell(self, id: str, status: str, note: str) -> None:
        row = self._rows[id]
        if status == "running":
            row.started = time.monotonic()
        row.status, row.note = status, note

    def _checkpoint(self, header: Header) -> None:
        self._saved = (header.seq, time.monotonic())

    # --- drawing

    def _picture(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=32)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for row in self._visible():
            grid.add_row(*self._cells(row, now))
        outer = Table.grid()
        outer.add_row(grid)
        outer.add_row(Text(self._footer(now), style="dim"))
        return outer

    def _cells(self, row: _Row, now: float) -> tuple[RenderableType, RenderableType, RenderableType]:
        from rich.spinner import Spinner
        from rich.text import Text

        if row.status == "running":
            elapsed = duration(now - row.started)
            spinner = Spinner("dots", style="cyan")
            spinner.start_time = 0.0
            return spinner, Text(row.name, style="bold"), Text(" ".join(filter(None, [elapsed, row.note])))
        mark, style = _MARKS[row.status]
        return (
            Text(mark, style=style),
            Text(row.name),
            Text(row.note, style="red" if style == "red" else "dim"),
        )

    def _visible(self) -> list[_Row]:
        """As many rows as fit, around the first that is not done."""
        rows = list(self._rows.values())
        room = max(3, self._height - 4)
        waiting = (at for at, row in enumerate(rows) if row.status in ("waiting", "running"))
        start = max(0, min(next(waiting, len(rows) - 1) - room // 2, len(rows) - room))
        return rows[start : start + room]

    def _footer(self, now: float) -> str:
        done = sum(row.status in ("completed", "before", "skipped") for row in self._rows.values())
        parts = [f"{done}/{len(self._rows)} done", duration(now - self._began)]
        if self._saved is not None:
            parts.append(f"last saved checkpoint {self._saved[0]}, {duration(now - self._saved[1])} ago")
        return " · ".join(parts)
