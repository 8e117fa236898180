"""`stepkeep stats`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from stepkeep import api
from stepkeep.access import is_loopback, read_address
from stepkeep.api import Stats
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.printing import lines, moment, table, write
from stepkeep.cli.serving import Access
from stepkeep.errors import InvalidInput
from stepkeep.text import clean, count, size

DEFAULT_PORT = 9464
TOKEN = "STEPKEEP_METRICS_TOKEN"
MAX_HOURS = 24 * 35
BARS = " ▁▂▃▄▅▆▇█"
EXAMPLE = """\
stepkeep stats
stepkeep stats --hours 72 --json
stepkeep stats --prometheus"""


@click.command("stats", cls=Command, example=EXAMPLE)
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
    help=f"Serve that text on loopback, at /metrics.  [default: {DEFAULT_PORT}]",
)
@settings_of
def stats(settings: Settings, hours: int, prometheus: bool, address: str | None) -> None:
    """Show what all processes counted in the store: saves, sizes, latencies, failures, resumes.

    --serve needs a token with every request: that of STEPKEEP_METRICS_TOKEN, else a new one, printed on stderr.
    """
    if settings.json and prometheus:
        raise click.UsageError("Choose one of --json and --prometheus.")
    if address is not None:
        _serve(settings, address)
        return
    with api.open(settings.store, create=False) as store:
        found = store.stats(hours=hours)
    if prometheus:
        write(api.prometheus(found).encode())
        return
    settings.show(found, _print)


# --- text ------------------------------------------------------------------------------------------------------


def _print(found: Stats) -> None:
    metrics, hours = found.metrics, found.hours
    since = "nothing yet" if found.since is None else f"since {moment(found.since)} UTC"
    lines([f"{clean(found.store)}: counted {since}", ""])
    rows: list[tuple[str, str, Sequence[float]]] = [
        ("checkpoint_save_count", f"{metrics.checkpoint_save_count:,}", [each.saves for each in hours]),
        (
            "checkpoint_save_size_bytes",
            f"{size(round(metrics.checkpoint_save_size_bytes))} on average",
            [each.content_bytes / each.saves if each.saves else 0 for each in hours],
        ),
        ("checkpoint_save_latency_ms", _latency(found), [each.latency_ms or 0 for each in hours]),
        ("checkpoint_resume_count", f"{metrics.checkpoint_resume_count:,}", [each.resumes for each in hours]),
        ("steps_recovered", f"{metrics.steps_recovered:,}", [each.steps_recovered for each in hours]),
        (
            "checkpoint_failure_count",
            f"{metrics.checkpoint_failure_count:,}",
            [each.failures for each in hours],
        ),
        (
            "checkpoint_conflict_count",
            f"{metrics.checkpoint_conflict_count:,}",
            [each.conflicts for each in hours],
        ),
        (
            "checkpoint_fallback_count",
            f"{metrics.checkpoint_fallback_count:,}",
            [each.fallbacks for each in hours],
        ),
        ("checkpoint_repeat_count", f"{metrics.checkpoint_repeat_count:,}", ()),
        ("checkpoint_removed_count", f"{found.checkpoint_removed_count:,}", ()),
        ("content_bytes", size(metrics.content_bytes), [each.content_bytes for each in hours]),
        ("stored_bytes", size(metrics.stored_bytes), [each.stored_bytes for each in hours]),
        ("spared_bytes", size(metrics.spared_bytes), ()),
    ]
    table(
        ["metric", "total", f"last {count(len(hours), 'hour')}"],
        [[name, total, sparkline(numbers)] for name, total, numbers in rows],
        right=["total"],
    )


def _latency(found: Stats) -> str:
    metrics = found.metrics
    p95 = metrics.checkpoint_save_latency_p95_ms
    text = f"{metrics.checkpoint_save_latency_ms:.1f} on average"
    if p95 is None:
        return text
    return (
        f"{text}, 95% within {p95:.0f}"
        if p95 != float("inf")
        else f"{text}, 5% above {found.latencies[-2].up_to_ms}"
    )


def sparkline(numbers: Sequence[float]) -> str:
    """Numbers as bars, the largest full; what is not 0 is always seen."""
    most = max(numbers, default=0)
    if not most:
        return ""
    return "".join(BARS[max(1, round(number / most * 8)) if number > 0 else 0] for number in numbers).rstrip()


# --- serving ---------------------------------------------------------------------------------------------------


def _serve(settings: Settings, address: str) -> None:
    from stepkeep.cli.metrics_server import serve

    try:
        host, port = read_address(address, default_port=DEFAULT_PORT)
    except ValueError as exc:
        raise InvalidInput(f"--serve: {exc}", code="invalid_address") from None
    if not is_loopback(host):
        raise InvalidInput(f"--serve listens on loopback only, not on {host}", code="invalid_address")
    access = Access(TOKEN)
    with api.open(settings.store, create=False) as store:
        serve(
            lambda: api.prometheus(store.stats(hours=1)),
            host,
            port,
            access.token,
            partial(access.announce, "metrics"),
        )


COMMANDS = {"stats": stats}
