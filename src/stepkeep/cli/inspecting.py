"""How a store is: `stepkeep status`, `stats`, `verify`, `doctor`, `config` and `trust`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click

from stepkeep import api
from stepkeep.cli.app import DAMAGE, CommonOptions, command
from stepkeep.cli.naming import Words, known, limit_option, on_session, opened, opened_without_key
from stepkeep.cli.printing import (
    ProgressLine,
    cleanup_text,
    facts,
    hanging,
    is_terminal,
    lines,
    moment,
    note,
    problem_line,
    ratio,
    styled,
    table,
    total_of,
    write,
)
from stepkeep.text import clean, count, size

# --- status ------------------------------------------------------------------------------------------------------

STATUS_EXAMPLE: Final = """\
stepkeep status
stepkeep status research-42"""


@command("status", STATUS_EXAMPLE)
@on_session()
@limit_option("Name the N largest sessions.  [default: 10]", least=0)
def status(settings: CommonOptions, words: Words, limit: int | None) -> None:
    """Show what the store holds and takes, and what the next clean would remove; or where SESSION stands.

    Stored is what bodies take on the disk. Ratio says how many times smaller that is than the states.
    """
    key = words.named_if_any()
    if key is not None and limit is not None:
        raise click.UsageError("--limit is about the whole store: leave it or the session out.")
    with opened(settings) as store:
        if key is None:
            whole = store.status() if limit is None else store.status(limit=limit)
            settings.show(whole, _print_store)
            if trouble := api.hook_trouble(store.engine.clock()):
                note(f"warning: {trouble}")
            return
        one = store.get(known(store, key)).status()
    settings.show(one, _print_session)


def _print_store(status: api.StoreStatus) -> None:
    usage = status.usage
    by_status = ", ".join(f"{number} {name}" for name, number in status.statuses.items() if number)
    _print_facts(
        {
            "store": status.store,
            "on disk": size(usage.store_bytes),
            "budget": _budget(status.budget_bytes, status.is_over_budget),
            "limit": ""
            if status.max_bytes is None
            else f"{size(status.max_bytes)}, saves beyond it are refused",
            "sessions": f"{usage.sessions:,}" + (f" ({by_status})" if by_status else ""),
            **_usage_facts(usage),
            "oldest": _time(status.oldest),
            "newest": _time(status.newest),
            "next clean": _next_clean(status.next_clean),
            "last backup": _last_backup(status.last_backup),
        }
    )
    if status.sessions:
        lines([""])
        rows = [_usage_row(each) for each in status.sessions]
        out = ("oldest", "ratio", "checkpoints")
        table(rows, right=["stored", "ratio", "checkpoints"], first_out=out)
        more = usage.sessions - len(status.sessions)
        lines([f"... ({more:,} more)"] if more > 0 else [])


def _usage_row(each: api.SessionUsage) -> dict[str, str]:
    return {
        "session": each.session,
        "stored": size(each.stored_bytes),
        "ratio": ratio(each.ratio),
        "checkpoints": f"{each.checkpoints:,}",
        "oldest": "-" if each.oldest is None else moment(each.oldest),
        "status": each.status,
    }


def _budget(budget_bytes: int | None, is_over: bool) -> str:
    if budget_bytes is None:
        return "none"
    over = ", used up: what may go is thinned, the oldest first, and saves go on"
    return f"{size(budget_bytes)}{over if is_over else ''}"


def _last_backup(backup: api.LastBackup | None) -> str:
    return "none" if backup is None else f"{moment(backup.time)}, {backup.path} ({size(backup.size_bytes)})"


def _next_clean(plan: api.NextClean) -> str:
    if not plan.count:
        return "would remove nothing"
    more = plan.count - len(plan.sessions)
    names = ", ".join(plan.sessions) + (f" and {more:,} more" if more else "")
    return f"would remove {count(plan.count, 'session')}: {names}"


def _print_session(status: api.SessionStatus) -> None:
    session, latest, takes = status.session, status.latest, status.takes
    _print_facts(
        {
            "session": session.key,
            "status": f"{session.status}: {session.error}" if session.error else session.status,
            "project": session.project or "",
            "workflow": session.workflow or "",
            "profile": session.profile,
            "branch": session.branch,
            "created": _time(session.created),
            "updated": _time(session.updated),
            "latest": "" if latest is None else f"{latest.id} (checkpoint {latest.seq})",
            "task": "" if latest is None else latest.task,
            "message": "" if latest is None else latest.message,
            "files": ""
            if status.stopped_restore is None
            else f"restoring those of {status.stopped_restore} was stopped in the middle: do it again to finish it, or "
            "take it back with `stepkeep restore --undo --files`",
            **_usage_facts(status.usage),
            "states": f"{size(takes.size_bytes)}, {ratio(takes.ratio)} the stored size"
            if takes.ratio
            else "",
            "oldest": _time(takes.oldest),
            "budget": _budget(status.budget_bytes, status.is_over_budget) if status.is_over_budget else "",
            "prune": "; ".join(status.rules),
            "clean": cleanup_text(status.cleanup),
        }
    )


def _usage_facts(usage: api.Usage) -> dict[str, str]:
    hidden = f"{size(usage.hidden_bytes)} of it belong to removed checkpoints that others build upon"
    return {
        "checkpoints": f"{usage.checkpoints:,}",
        "bodies": f"{size(usage.body_bytes)} in {count(usage.bodies, 'record')}",
        "hidden": hidden if usage.hidden_bodies else "",
        "blobs": f"{size(usage.blob_bytes)} in {count(usage.blobs, 'record')}" if usage.blobs else "",
    }


def _time(when: datetime | None) -> str:
    return "" if when is None else f"{moment(when)} UTC"


def _print_facts(texts: dict[str, str]) -> None:
    lines(facts(texts, 13))


# --- stats -------------------------------------------------------------------------------------------------------

METRICS_PORT: Final = 9464
MAX_HOURS: Final = 24 * 35
BARS: Final = " ▁▂▃▄▅▆▇█"
STATS_EXAMPLE: Final = """\
stepkeep stats
stepkeep stats --hours 72 --json
stepkeep stats --prometheus"""


@command("stats", STATS_EXAMPLE)
@click.option(
    "--hours",
    type=click.IntRange(1, MAX_HOURS),
    default=24,
    metavar="N",
    help="Show the last N hours one by one.  [default: 24]",
)
@click.option("--prometheus", is_flag=True, help="Print the text format of Prometheus.")
@click.option(
    "--serve",
    "address",
    is_flag=False,
    flag_value="",
    metavar="[PORT]",
    help=f"Serve that text on loopback, at /metrics.  [default: {METRICS_PORT}]",
)
def stats(settings: CommonOptions, hours: int, prometheus: bool, address: str | None) -> None:
    """Show what all processes counted in the store: saves, sizes, latencies, failures, resumes.

    --serve needs a token with every request: that of STEPKEEP_METRICS_TOKEN, else a new one, printed on stderr.
    """
    if settings.json and prometheus:
        raise click.UsageError("Choose one of --json and --prometheus.")
    if address is not None:
        _serve(settings, address)
        return
    with opened(settings) as store:
        found = store.stats(hours=hours)
    if prometheus:
        write(api.prometheus(found).encode())
        return
    settings.show(found, _print_stats)


def _serve(settings: CommonOptions, address: str) -> None:
    from stepkeep.cli.serving import Access, address_given, serve_metrics  # few ask for it

    remote = "listens on loopback only, not on {}"
    host, port = address_given("--serve", address, default_port=METRICS_PORT, remote=remote)
    access = Access("STEPKEEP_METRICS_TOKEN")
    with opened(settings) as store:
        serve_metrics(lambda: api.prometheus(store.stats(hours=1)), host, port, access)


def _print_stats(found: api.Stats) -> None:
    metrics, hours = found.metrics, found.hours
    since = "counted nothing yet" if found.since is None else f"counted since {moment(found.since)} UTC"
    told = since if found.is_counted else "nothing is counted: metrics.enabled is false"
    lines([f"{clean(found.store)}: {told}", ""])
    average = f"{size(round(metrics.checkpoint_save_size_bytes))} mean"
    sizes = [each.content_bytes / each.saves if each.saves else 0 for each in hours]
    latencies = [each.latency_ms or 0 for each in hours]

    def counted(number: int, field: str = "") -> tuple[str, list[int]]:
        return f"{number:,}", [getattr(each, field) for each in hours] if field else []

    rows: dict[str, tuple[str, Sequence[float]]] = {
        "checkpoint_save_count": counted(metrics.checkpoint_save_count, "saves"),
        "checkpoint_save_size_bytes": (average, sizes),
        "checkpoint_save_latency_ms": (_latency(found), latencies),
        "checkpoint_resume_count": counted(metrics.checkpoint_resume_count, "resumes"),
        "steps_recovered": counted(metrics.steps_recovered, "steps_recovered"),
        "checkpoint_failure_count": counted(metrics.checkpoint_failure_count, "failures"),
        "checkpoint_conflict_count": counted(metrics.checkpoint_conflict_count, "conflicts"),
        "checkpoint_fallback_count": counted(metrics.checkpoint_fallback_count, "fallbacks"),
        "checkpoint_repeat_count": counted(metrics.checkpoint_repeat_count),
        "checkpoint_removed_count": counted(found.checkpoint_removed_count),
        "tokens": counted(found.tokens),
        "cost": (f"{found.cost:g}", []),
        "content_bytes": (size(metrics.content_bytes), [each.content_bytes for each in hours]),
        "stored_bytes": (size(metrics.stored_bytes), [each.stored_bytes for each in hours]),
        "spared_bytes": (size(metrics.spared_bytes), []),
    }
    last = f"last {count(len(hours), 'hour')}"
    table(
        [
            {"metric": name, "total": total, last: sparkline(numbers)}
            for name, (total, numbers) in rows.items()
        ],
        right=["total"],
        first_out=[last],
    )


def _latency(found: api.Stats) -> str:
    p95 = found.metrics.checkpoint_save_latency_p95_ms
    text = f"{found.metrics.checkpoint_save_latency_ms:.1f} mean"
    if p95 is None:
        return text
    if p95 == float("inf"):
        return f"{text}, 5% above {found.latencies[-2].up_to_ms}"
    return f"{text}, 95% within {p95:.0f}"


def sparkline(numbers: Sequence[float]) -> str:
    """Numbers as bars, the largest full; what is not 0 is always seen."""
    most = max(numbers, default=0)
    if not most:
        return ""
    return "".join(BARS[max(1, round(number / most * 8)) if number > 0 else 0] for number in numbers).rstrip()


# --- verify ------------------------------------------------------------------------------------------------------


@command("verify", "stepkeep verify research-42")
@on_session()
@click.option("--repair", is_flag=True, help="First put right what can be made anew, and say what was done.")
def verify(settings: CommonOptions, words: Words, repair: bool) -> int:
    """Check every stored byte of SESSION, or of the whole store.

    --repair writes `latest.json` and checksums of readable files anew, restores the newest document from its copy, and
    removes files and records that belong to nothing. No checkpoint is changed. Of an encrypted store without its key
    the stored bytes are checked, and not what they decrypt to. Exits with 4 when something is not as it was written.
    """
    key = words.named_if_any()
    with opened_without_key(settings) as store:
        target: api.Store | api.Session = store if key is None else store.get(known(store, key))
        with ProgressLine("verifying", target.usage().checkpoints) as progress:
            report = target.verify(repair=repair, progress=progress.advance)
    settings.show(report, _print_verified)
    return 0 if report.is_intact else DAMAGE


def _print_verified(report: api.VerifyReport) -> None:
    texts = [f"Repaired: {clean(each)}" for each in report.repaired]
    for finding in report.findings:
        number = "" if finding.seq is None else f" checkpoint {finding.seq}"
        id = finding.checkpoint
        where = f" {id}" if id and id not in finding.message else ""
        about = f"{finding.session}{number}{where}"
        texts.append(problem_line("DAMAGED", about, finding.message, finding.code))
    removed = f", {report.pruned} removed on purpose" if report.pruned else ""
    removed += f", {report.lost} lost before a recovery" if report.lost else ""
    removed += f", {report.unknown} removed or lost, which is not known" if report.unknown else ""
    parents = f", the parent of {len(report.parent_unknown)} was never here" if report.parent_unknown else ""
    verdict = "intact" if report.is_intact else count(len(report.findings), "finding")
    lines([*texts, f"Verified {total_of(report.checkpoints, report.sessions)}{removed}{parents}: {verdict}"])
    if report.findings:
        note(f"What to do: {'; '.join(report.fixes)}")


# --- doctor ------------------------------------------------------------------------------------------------------

DOCTOR_EXAMPLE: Final = """\
stepkeep doctor
stepkeep doctor --full --json"""
_MARKS: Final = {
    "ok": ("ok", "green"),
    "note": ("note", None),
    "warning": ("WARN", "yellow"),
    "problem": ("BAD", "red"),
}


@command("doctor", DOCTOR_EXAMPLE)
@click.option("--full", is_flag=True, help="Verify every byte, not only a sample.")
def doctor(settings: CommonOptions, full: bool) -> int:
    """Look over the store and what it runs on, and say what to do about each thing that is not in order.

    Nothing is created or changed. Exits with 1 when there is a problem.
    """
    with ProgressLine("verifying") as progress:
        diagnosis = api.diagnose(settings.store, full=full, progress=progress.advance)
    settings.show(diagnosis, _print_diagnosis)
    return 0 if diagnosis.is_healthy else 1


def _print_diagnosis(diagnosis: api.Diagnosis) -> None:
    lines([f"store {clean(diagnosis.store)}"])
    for symptom in diagnosis.symptoms:
        lines(_symptom_lines(symptom))
    problems = sum(each.verdict == "problem" for each in diagnosis.symptoms)
    warnings = sum(each.verdict == "warning" for each in diagnosis.symptoms)
    if problems:
        lines([f"Not healthy: {count(problems, 'problem')}, {count(warnings, 'warning')}."])
    else:
        lines([f"Healthy, {count(warnings, 'warning')}." if warnings else "Healthy."])


def _symptom_lines(symptom: api.Symptom) -> list[str]:
    mark, colour = _MARKS[symptom.verdict]
    said = hanging(f"{mark:<4}  {symptom.name:<13}  ", clean(symptom.message))
    first = styled(said[:4], colour) + said[4:]
    return [first] if symptom.advice is None else [first, hanging(f"{'':21}→ ", clean(symptom.advice))]


# --- config ------------------------------------------------------------------------------------------------------

CONFIG_EXAMPLE: Final = """\
stepkeep config show
stepkeep config check
stepkeep config init
stepkeep config set retention.keep_within 7d"""
WRONG: Final = 2
WIDEST_KEY: Final = 46


_CONFIG_ACTIONS: Final = ("show", "path", "check", "init", "set")


def _complete_key(_ctx: click.Context, _param: click.Parameter, prefix: str) -> list[str]:
    names = (each.key for each in api.inspect_config().settings)
    return [name for name in names if name.startswith(prefix)]


@command("config", CONFIG_EXAMPLE)
@click.argument("action", type=click.Choice(_CONFIG_ACTIONS), metavar="|".join(_CONFIG_ACTIONS))
@click.argument("key", required=False, metavar="[KEY", shell_complete=_complete_key)
@click.argument("value", required=False, metavar="VALUE]")
@click.option("--user", is_flag=True, help="With init and set: your own file, for all projects.")
@click.option("--force", is_flag=True, help="With init: replace the file if it exists.")
def config(
    settings: CommonOptions, action: str, key: str | None, value: str | None, user: bool, force: bool
) -> int:
    """Show or change the configuration.

    show: every key, its value and where the value came from.
    path: the files that are looked for, those that win first.
    check: what is wrong, one problem per line; exits with 2 if something is.
    init: write a stepkeep.yaml here in which every key is explained, as a comment.
    set KEY VALUE: change one key in the project's file, a new one if need be. Comments stay; a value that does not
    fit is refused.
    """
    if (action == "set") != (value is not None):
        raise click.UsageError("Only `config set` takes KEY and VALUE, and it takes both.")
    if (user and action not in ("init", "set")) or (force and action != "init"):
        raise click.UsageError("--user goes with init and set, --force with init.")
    if action == "init":
        settings.show(api.init_config(user=user, force=force), _print_written)
        return 0
    if key is not None and value is not None:
        settings.show(api.set_config(key, value, user=user), _print_written)
        return 0
    found = api.inspect_config(settings.store)
    if action == "path":
        settings.show(found.files, lambda _: _print_files(found))
        return 0
    if action == "check":
        settings.show(found.problems, lambda _: _print_problems(found))
    else:
        settings.show(found, _print_settings)
    return WRONG if found.problems else 0


def _print_written(written: api.ConfigWritten) -> None:
    what = "every key is in it, as a comment" if written.key is None else f"{written.key}: {written.value}"
    lines([clean(f"{'Wrote' if written.is_new else 'Changed'} {written.file} ({what})")])


TRUST_EXAMPLE: Final = "stepkeep trust"


@command("trust", TRUST_EXAMPLE)
def trust(settings: CommonOptions) -> int:
    """Trust the stepkeep.yaml of this project to name a store outside of it, until the file changes.

    Such a file may come from a stranger, and whoever owns the store gets what you save. Read it first.
    """
    settings.show(api.trust(), _print_trusted)
    return 0


def _print_trusted(trusted: api.Trusted) -> None:
    store = "no store" if trusted.store is None else f"the store {clean(trusted.store)}"
    again = "" if trusted.is_new else " It was trusted already."
    lines([f"{clean(trusted.file)} names {store}, and is trusted until it changes.{again}"])


def _print_settings(found: api.Config) -> None:
    if is_terminal():
        # Cutting off keys or paths would help nobody: long lines go on below.
        wide = min(WIDEST_KEY, max(len(each.key) for each in found.settings))
        lines(_setting_line(each, wide) for each in found.settings)
    else:
        table([{"key": each.key, "value": each.text, "from": _origin(each)} for each in found.settings])
    for problem in found.problems:
        note(f"error: {problem.text}")


def _setting_line(setting: api.SettingView, wide: int) -> str:
    text = f"{clean(setting.key):<{wide}}  {clean(setting.text)}"
    return text if setting.origin == "default" else styled(f"{text}  [{clean(_origin(setting))}]", "green")


def _origin(setting: api.SettingView) -> str:
    source = setting.source or setting.origin
    return source if setting.line is None else f"{source}:{setting.line}"


def _print_files(found: api.Config) -> None:
    rows = [
        {
            "": "used" if file.is_used else "ignored" if file.exists else "missing",
            "scope": file.scope,
            "file": file.path,
        }
        for file in found.files
    ]
    table(rows, wrap=True)
    for file in found.files:
        if file.note:
            note(f"note: {file.path} is {file.note}")


def _print_problems(found: api.Config) -> None:
    used = sum(file.is_used for file in found.files)
    fine = f"No problems in {count(used, 'file')} and the environment."
    lines([clean(problem.text) for problem in found.problems] or [fine])
