"""What leaves a store and what comes into one: `backup`, `restore-backup`, `copy`, `recover`, `export`, `import`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from stepkeep import api
from stepkeep.cli.app import DAMAGE, CommandGroup, CommonOptions, command
from stepkeep.cli.naming import Words, on_session, opened, opened_without_key, told_to_end
from stepkeep.cli.printing import ProgressLine, lines, note, problem_line, total_of, write
from stepkeep.errors import NotFound, driver_missing
from stepkeep.text import clean, count, size

if TYPE_CHECKING:
    from stepkeep.adapters.langgraph.migration import LangGraphImport
    from stepkeep.web.one_file import HtmlExported

MAX_SHOWN: Final = 200
SPAN: Final = "SPAN"

# --- backups -----------------------------------------------------------------------------------------------------

BACKUP_EXAMPLE: Final = """\
stepkeep backup before-upgrade.db
stepkeep backup /backups/agent --keep-last 7
stepkeep backup s3://my-backups/agent --keep-within 2d --keep-daily 30d
stepkeep backup /mnt/usb --recipient age1… --every 1h --keep-last 48"""


RESTORE_EXAMPLE: Final = """\
stepkeep restore-backup before-upgrade.db --force
stepkeep restore-backup s3://my-backups/agent --identity key.txt"""


@command("backup", BACKUP_EXAMPLE)
@click.argument("destination", metavar="DEST")
@click.option("--keep-last", type=int, metavar="N", help="Keep the newest N backups in DEST.")
@click.option(
    "--keep-within", metavar=SPAN, help="Keep every backup in DEST that is younger, such as 12h or 7d."
)
@click.option("--keep-hourly", metavar=SPAN, help="Keep one per hour, for that long.")
@click.option("--keep-daily", metavar=SPAN, help="Keep one per day, for that long.")
@click.option("--keep-weekly", metavar=SPAN, help="Keep one per week, for that long.")
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="KEY",
    help="Encrypt it for this public key of age; repeatable.",
)
@click.option(
    "--every", metavar=SPAN, help="Go on, and make one so often, such as 1h; SIGTERM or Ctrl-C ends it."
)
@click.option("--force", is_flag=True, help="Replace DEST if it exists.")
def backup(settings: CommonOptions, /, destination: str, every: str | None, **options: Any) -> int:
    """Write the whole store to the file DEST while it is in use, and verify it.

    If DEST is a directory or s3://BUCKET/PREFIX, the backup in it is named after the time, and the --keep options say
    which of these stay. What object storage has already is not sent again. Exits with 4 when the store has damage,
    which is then in the backup too.
    """
    if every is not None:
        _back_up_every(settings, destination, every, options)
    with told_to_end(), opened_without_key(settings) as store, ProgressLine("backing up", 100) as progress:
        report = store.backup(destination, progress=progress.reached, **options)
    settings.show(report, _print_backup)
    return DAMAGE if report.findings else 0


def _back_up_every(
    settings: CommonOptions, destination: str, every: str, options: dict[str, Any]
) -> NoReturn:
    if not (api.is_object_url(destination) or Path(destination).is_dir()):
        raise click.UsageError(
            "--every needs a directory or s3://BUCKET/PREFIX, where each backup has its name."
        )
    with told_to_end(0):
        try:
            for attempt in api.backups_every(
                partial(opened_without_key, settings), destination, every=every, **options
            ):
                settings.show(attempt, _print_attempt)
        except KeyboardInterrupt:
            sys.exit(0)
    raise AssertionError


def _print_attempt(attempt: api.BackupAttempt) -> None:
    if attempt.report is not None:
        _print_backup(attempt.report)
    else:
        note(f"error: {clean(attempt.message or '')} ({attempt.code})")
    lines([f"The next one at {attempt.next.astimezone():%Y-%m-%d %H:%M:%S}"])


def _print_backup(report: api.BackupReport) -> None:
    texts = [problem_line("DAMAGED", each.session, each.message, each.code) for each in report.findings]
    content = total_of(report.checkpoints, report.sessions)
    sent = f", {size(report.sent_bytes)} sent" if api.is_object_url(report.path) else ""
    sent += f", encrypted for {count(len(report.recipients), 'key')}" if report.recipients else ""
    texts.append(f"Backed up {content} to {clean(report.path)} ({size(report.size_bytes)}{sent})")
    texts += [f"Removed {clean(path)}" for path in report.removed]
    lines(texts)


@command("restore-backup", RESTORE_EXAMPLE)
@click.argument("source", metavar="BACKUP")
@click.option("--identity", metavar="FILE", help="The file with the key of a backup that is encrypted.")
@click.option("--force", is_flag=True, help="Replace the store; it is kept under another name.")
def restore_backup(settings: CommonOptions, source: str, identity: str | None, force: bool) -> None:
    """Make BACKUP the store, after every byte of it was verified. BACKUP itself is only read.

    It is a file, s3://BUCKET/PREFIX for the newest backup there, or s3://BUCKET/PREFIX/backups/NAME.
    """
    url = settings.store or api.default_url()
    with told_to_end(), ProgressLine("restoring", 100) as progress:
        report = api.restore_backup(source, url, identity=identity, force=force, progress=progress.reached)
    settings.show(report, _print_restored)


def _print_restored(report: api.BackupReport) -> None:
    texts = [f"Restored {total_of(report.checkpoints, report.sessions)} to {clean(report.path)}"]
    if report.replaced is not None:
        texts.append(f"The store that was there is now {clean(report.replaced)}")
    lines(texts)


# --- from store to store -----------------------------------------------------------------------------------------

COPY_EXAMPLE: Final = """\
stepkeep copy sqlite:agent.db files:readable
stepkeep copy sqlite:agent.db postgresql:///stepkeep --session research-42"""


@command("copy", COPY_EXAMPLE)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DEST")
@click.option("--session", "keys", multiple=True, metavar="KEY", help="Copy this session only; repeatable.")
@click.option(
    "--encrypt", is_flag=True, help="Make DEST an encrypted store, with the key of the environment."
)
def copy(settings: CommonOptions, source: str, destination: str, keys: tuple[str, ...], encrypt: bool) -> int:
    """Copy sessions from the store SRC into the store DEST, and verify them there.

    Ids, numbers, branches, notes, events and digests stay the same. Repeat it to bring over what is new, or after an
    interruption. With --encrypt headers are sealed anew, and remember the chain value they had; the copy of an
    encrypted store has the same keys. Exits with 4 when something in SRC is damaged, and with 5 when DEST refused a
    session.
    """
    with told_to_end(), ProgressLine("copying", api.count_copied(source, keys)) as progress:
        report = api.copy_store(source, destination, keys=keys, encrypt=encrypt, progress=progress.advance)
    settings.show(report, _print_copied)
    return _exit_code(report)


def _print_copied(report: api.CopyReport) -> None:
    there = f", {report.present:,} were there" if report.present else ""
    lines([*_problems(report), f"Copied {total_of(report.copied, report.sessions)}{there}"])


def _problems(report: api.CopyReport) -> list[str]:
    texts = [problem_line("REFUSED", each.session, each.message, each.code) for each in report.refused]
    lost = [
        (
            each.session if each.seq is None else f"{each.session} checkpoint {each.seq}",
            each.message,
            each.code,
        )
        for each in report.lost
    ]
    texts += _first_ones("LOST", lost)
    texts += [problem_line("DAMAGED", each.session, each.message, each.code) for each in report.findings]
    return texts


def _first_ones(word: str, problems: list[tuple[str, str, str]]) -> list[str]:
    """A line for each problem, unless they are too many to be read."""
    texts = [problem_line(word, *each) for each in problems[:MAX_SHOWN]]
    more = len(problems) - MAX_SHOWN
    return [*texts, f"{word} {more:,} more; --json lists all"] if more > 0 else texts


def _exit_code(report: api.CopyReport) -> int:
    if report.lost or report.findings:
        return DAMAGE
    return 5 if report.refused else 0


@command("recover", "stepkeep recover sqlite:broken.db sqlite:mended.db")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DEST")
def recover(settings: CommonOptions, source: str, destination: str) -> int:
    """Bring every checkpoint of the damaged store SRC that still verifies into the new store DEST.

    SRC is only read, also when SQLite cannot open it any more. What is lost is listed by session and number. Exits
    with 4 when something is lost.
    """
    with told_to_end(), ProgressLine("recovering") as progress:
        report = api.recover(source, destination, progress=progress.advance)
    settings.show(report, _print_recovered)
    return _exit_code(report.copied)


def _print_recovered(report: api.RecoverReport) -> None:
    copied = report.copied
    texts = _problems(copied)
    if report.by_pages:
        texts.append(f"Read page by page, because: {clean(report.problem or '')}")
    texts.append(f"Recovered {total_of(copied.copied, copied.sessions)}, lost {len(copied.lost):,}")
    lines(texts)


# --- export ------------------------------------------------------------------------------------------------------

AGENTS: Final = "agents"
EXPORT_EXAMPLE: Final = """\
stepkeep export research-42 --output debug.json
stepkeep export research-42 step-5 --output - | jq .state
stepkeep export research-42 --format run --output snapshot.json
stepkeep export research-42 --files --output files.tar
stepkeep export research-42 --html research.html"""


@command("export", EXPORT_EXAMPLE)
@on_session("ref")
@click.option("-o", "--output", metavar="FILE|-", help="Where to write it; - is stdout.")
@click.option(
    "--html",
    metavar="FILE",
    help="Write the pages of the session, as in `ui`: one file, opened without a server.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option(
    "--format",
    "form",
    type=click.Choice([*api.FORMATS, AGENTS]),
    default=api.FORMATS[0],
    help="Which document to write: ours, that of a layout of readable files, or a database of agents.",
)
@click.option(
    "--files", "is_files", is_flag=True, help="Write the project files of the checkpoint, as a tar archive."
)
@click.option(
    "--transcript",
    "is_transcript",
    is_flag=True,
    help="Write the transcript of a coding agent as it was then, byte for byte.",
)
def export(
    settings: CommonOptions,
    words: Words,
    output: str | None,
    html: str | None,
    force: bool,
    form: str,
    is_files: bool,
    is_transcript: bool,
) -> None:
    """Write a checkpoint of SESSION as readable JSON: its header and its state, decompressed.

    With --format run it is the document of the snapshot lifecycle, with the triggers that were merged into the
    checkpoint; workflow and phase are the documents of the other layouts. The last line of these proves all others.

    With --format agents all checkpoints of the session go into a new SQLite database, in a table with `state_json`.

    The file appears whole or not at all, readable only by you.
    """
    if html is not None:
        _export_html(
            settings, words, html, force=force, is_alone=output is None and not (is_files or is_transcript)
        )
        return
    if output is None:
        raise click.UsageError("Where to? Name a file by --output, or by --html.")
    if is_files and is_transcript:
        raise click.UsageError("--files or --transcript: one at a time.")
    if form == AGENTS and (output == "-" or is_files or is_transcript):
        raise click.UsageError("--format agents writes a database: name its file, without --files.")
    if output == "-" and settings.json:
        raise click.UsageError("--json describes the file that was written; with --output - there is none.")
    path = None if output == "-" else Path(output)
    with opened(settings) as store:
        key, ref = words.chosen_and_ref(store)
        run = store.get(key)
        if form == AGENTS:
            database = api.export_agents(run, Path(output), force=force)
            settings.show(database, _print_database)
            return
        if is_files:
            archive = run.files.export(ref, output=path or sys.stdout.buffer, force=force)
            if path is not None:
                settings.show(archive, _print_archive)
            return
        if is_transcript:
            written = run.export_transcript(ref, output=path or sys.stdout.buffer, force=force)
            if path is not None:
                settings.show(written, _print_transcript)
            return
        exported, content = run.export(ref, output=path, force=force, format=form)
    if exported.encoding != "json":
        note(f"note: values JSON lacks are written as objects with one $ key ({exported.encoding})")
    if path is None:
        write(content)
    else:
        settings.show(exported, _print_exported)


def _export_html(settings: CommonOptions, words: Words, html: str, *, force: bool, is_alone: bool) -> None:
    from stepkeep.web.one_file import export_html  # few ask for it

    if not is_alone:
        raise click.UsageError("--html writes a file of its own: leave out --output and --files.")
    with opened(settings) as store:
        key, refs = words.chosen_and_refs(store)
        if refs:
            raise click.UsageError("--html is about the whole session.")
        settings.show(export_html(store, key, Path(html), force=force), print_html)


def print_html(exported: HtmlExported) -> None:
    left_out = f", {count(exported.left_out, 'checkpoint')} without contents" if exported.left_out else ""
    what = f"{count(exported.checkpoints, 'checkpoint')}{left_out}, {size(exported.size_bytes)}"
    lines([f"Wrote {clean(exported.output)} ({what})"])


def _print_exported(exported: api.Exported) -> None:
    place = clean(exported.output or "stdout")
    lines([f"Wrote {exported.checkpoint} to {place} ({size(exported.size_bytes)})"])


def _print_transcript(written: api.TranscriptExported) -> None:
    place = clean(written.output or "stdout")
    lines([f"Wrote the transcript of {written.checkpoint} to {place} ({size(written.size_bytes)})"])


def _print_database(exported: api.AgentsExported) -> None:
    what = count(exported.rows, "checkpoint")
    lines(
        [
            f"Wrote {what} of {clean(exported.session)} to {clean(exported.output)} ({size(exported.size_bytes)})"
        ]
    )


def _print_archive(exported: api.FilesExported) -> None:
    place = (
        f"{clean(exported.output or 'stdout')} ({count(exported.files, 'file')}, {size(exported.size_bytes)})"
    )
    lines([f"Wrote the files of {exported.checkpoint} to {place}"])


# --- import: one command for each system that something can come from --------------------------------------------

IMPORT_EXAMPLE: Final = "stepkeep import langgraph --from sqlite:checkpoints.sqlite"
FILES_EXAMPLE: Final = """\
stepkeep import files ~/.prodigy --layout workflow --dry-run
stepkeep import files checkpoints --layout run"""
LANGGRAPH_EXAMPLE: Final = """\
stepkeep import langgraph --from sqlite:checkpoints.sqlite
stepkeep import langgraph --from postgresql://localhost/agents --thread 42"""


@click.group("import", cls=CommandGroup, example=IMPORT_EXAMPLE)
def import_() -> None:
    """Bring in what another system saved, verifying what can be verified and reporting the rest."""


@command("files", FILES_EXAMPLE, group=import_)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    required=True,
    type=click.Choice(api.LAYOUTS),
    help="Whose files they are: how they are named and shaped.",
)
@click.option("--session", metavar="KEY", help="Put all of them into this session.")
@click.option(
    "--accept-unverified", is_flag=True, help="Also adopt files whose checksum cannot be confirmed."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be adopted, and why not.")
def files(
    settings: CommonOptions,
    /,
    directory: Path,
    layout: str,
    session: str | None,
    dry_run: bool,
    **options: Any,
) -> int:
    """Adopt checkpoint files of other systems in DIR: check what can be checked, and report the rest.

    The files are only read. Their ids become external ids, order and times stay. Repeating it adds nothing.
    Exits with 4 when a file had to be skipped.
    """
    with _destination(settings.store, dry_run=dry_run) as store:
        report = store.import_files(directory, layout, session=session, dry_run=dry_run, **options)
    settings.show(report, _print_files)
    return DAMAGE if report.skipped else 0


def _destination(url: str | None, *, dry_run: bool) -> api.Store:
    """The store to import into, made if need be; a dry run makes none."""
    try:
        return api.open(url, create=not dry_run)
    except NotFound:
        return api.open("memory:")


def _print_files(report: api.FilesImport) -> None:
    texts = [_file_text(each) for each in report.files]
    if report.note is not None:
        texts.append(clean(f"{report.note}: {report.fixes[0]}"))
    would = "would be " if report.is_dry_run else ""
    texts.append(
        f"{report.imported:,} {would}imported, {report.present:,} already there, "
        f"{report.ours:,} of Stepkeep, {report.skipped:,} skipped"
    )
    lines([*texts, "This was a dry run: nothing was imported."] if report.is_dry_run else texts)


def _file_text(each: api.FileImport) -> str:
    start = f"{each.outcome:<8}  {clean(each.file)}"
    if each.code is not None or each.message is not None:
        code = "" if each.code is None else f" ({each.code})"
        return f"{start}: {clean(each.message or '')}{code}"
    checked = f"verified: {', '.join(each.verified) or 'nothing'}"
    unchecked = f"; not verified: {', '.join(each.unverified)}" if each.unverified else ""
    return f"{start} -> {clean(each.session or '')}, {clean(each.external_id or '')} ({checked}{unchecked})"


@command("agents", "stepkeep import agents agents.db --dry-run", group=import_)
@click.argument("database", metavar="FILE.db", type=click.Path(path_type=Path))
@click.option("--session", metavar="KEY", help="Put all of them into this session.")
@click.option("--dry-run", is_flag=True, help="Only show what would be adopted, and why not.")
def agents(settings: CommonOptions, database: Path, session: str | None, dry_run: bool) -> int:
    """Adopt the agent checkpoints in the SQLite database FILE.db: a table with session_id, step_number and state_json.

    The database is only read. Its ids become external ids, order and times stay. Repeating it adds nothing.
    Exits with 4 when a row had to be skipped.
    """
    with _destination(settings.store, dry_run=dry_run) as store:
        report = store.import_agents(database, session=session, dry_run=dry_run)
    settings.show(report, _print_files)
    return DAMAGE if report.skipped else 0


@command("langgraph", LANGGRAPH_EXAMPLE, group=import_)
@click.option(
    "--from", "source", required=True, metavar="URL", help="sqlite:PATH or postgresql://… of the saver."
)
@click.option("--thread", "threads", multiple=True, metavar="ID", help="Import this thread only; repeatable.")
def langgraph(settings: CommonOptions, source: str, threads: tuple[str, ...]) -> int:
    """Copy the threads of SqliteSaver or PostgresSaver into the store, and verify each checkpoint.

    The source is only read. Repeat it after an interruption, or to bring over what is new. Exits with 4 when
    something could not be brought over.
    """
    try:
        from stepkeep.adapters.langgraph import migration  # importing LangGraph takes a second
    except ImportError as exc:
        raise driver_missing("LangGraph", "langgraph", exc) from exc
    with (
        ProgressLine("importing", migration.count(source, threads)) as progress,
        opened(settings, create=True) as store,
    ):
        report = migration.migrate(store, source, threads, progress.advance)
    settings.show(report, _print_threads)
    return DAMAGE if report.refused else 0


def _print_threads(report: LangGraphImport) -> None:
    refused = [(f"{each.thread} {each.checkpoint or ''}", each.message, each.code) for each in report.refused]
    texts = _first_ones("REFUSED", refused)
    there = f", {report.present:,} were there" if report.present else ""
    done = f"{count(report.imported, 'checkpoint')} in {count(report.threads, 'thread')}"
    texts.append(
        f"Imported {done}{there}, with {count(report.writes, 'write')}; {report.verified:,} verified"
    )
    if report.classes:
        texts.append(f"To load them, StepkeepSaver needs allow= for: {clean(', '.join(report.classes))}")
    lines(texts)
