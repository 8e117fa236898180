"""The keys of an encrypted store: `key init`, `list`, `add`, `remove`, `rotate`, `rekey`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from stepkeep import api
from stepkeep.cli.app import DAMAGE, CommandGroup, CommonOptions, command
from stepkeep.cli.naming import BUSY_SECONDS, opened, opened_without_key, told_to_end
from stepkeep.cli.printing import ProgressLine, lines
from stepkeep.model import from_us
from stepkeep.text import clean, count

EXAMPLE: Final = """\
stepkeep key init --new-file ~/.config/stepkeep/key --store sqlite:agent.db
export STEPKEEP_KEY_FILE=~/.config/stepkeep/key
stepkeep key add --passphrase --label "in the safe"
stepkeep key list"""

REKEY_EXAMPLE: Final = """\
stepkeep key rotate --new-file ~/.config/stepkeep/key-2027
stepkeep key rekey --drop-slots"""


@click.group("key", cls=CommandGroup, example=EXAMPLE)
def key() -> None:
    """Make an encrypted store, and say what opens it.

    A store has any number of slots; each is opened by a key of its own: a key file, what a command prints, or a
    passphrase. The key of a command comes from STEPKEEP_KEY_FILE, STEPKEEP_KEY_COMMAND or STEPKEEP_KEY, the first that
    is set. A key file or command is best for hooks of agents: a passphrase takes a tenth of a second each time.
    """


def new_key(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name the key of a new slot."""
    options = (
        click.option("--file", metavar="FILE", help="The key in FILE, 32 bytes or more."),
        click.option("--new-file", metavar="FILE", help="A new key, written to FILE, which must not exist."),
        click.option("--command", "shell", metavar="COMMAND", help="What COMMAND prints, 32 bytes or more."),
        click.option("--passphrase", is_flag=True, help="A passphrase, which is asked for."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _given(file: str | None, new_file: str | None, shell: str | None, passphrase: bool) -> str | bytes | None:
    if sum((file is not None, new_file is not None, shell is not None, passphrase)) > 1:
        raise click.UsageError("Give one of --file, --new-file, --command and --passphrase.")
    if passphrase:
        text: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
        return text
    return api.given_key(file=file, new_file=new_file, command=shell)


def _needed(key: str | bytes | None) -> str | bytes:
    if key is None:
        raise click.UsageError("Give one of --file, --new-file, --command and --passphrase.")
    return key


@command("init", "stepkeep key init --new-file ~/.config/stepkeep/key --store sqlite:agent.db", group=key)
@new_key
def init(
    settings: CommonOptions, file: str | None, new_file: str | None, shell: str | None, passphrase: bool
) -> None:
    """Make a new store that is encrypted. Without an option its key is that of the environment.

    A store that has sessions cannot become one: `stepkeep copy --encrypt` makes an encrypted copy of it.
    """
    given = _given(file, new_file, shell, passphrase)
    with api.open(settings.store, key=given, encrypt=True, busy_seconds=BUSY_SECONDS) as store:
        settings.show(list(store.keys.list()), lambda slots: _print_made(store.url, new_file, slots))


def _print_made(url: str, new_file: str | None, slots: list[api.SlotInfo]) -> None:
    lines([f"{clean(url)} is encrypted"])
    _print_slots(slots)
    if new_file is not None:
        lines([f"Keep a copy of {clean(new_file)} elsewhere: without a key nobody can read the store"])


@command("list", "stepkeep key list", group=key)
def list_(settings: CommonOptions) -> None:
    """List the slots of the store, and whether its data key is being changed. Needs no key."""
    with opened_without_key(settings) as store:
        settings.show(list(store.keys.list()), lambda slots: _print_all(slots, store))


def _print_all(slots: list[api.SlotInfo], store: api.Store) -> None:
    _print_slots(slots)
    report = store.keys.rekey(dry_run=True)
    if not report.is_done:
        lines([_unfinished(report)])


def _unfinished(report: api.RekeyReport) -> str:
    return (
        f"Data key {report.key} is taking the place of an older one, {count(report.left, 'record')} left: "
        "`stepkeep key rekey` goes on"
    )


def _print_slots(slots: list[api.SlotInfo]) -> None:
    lines([_slot_line(slot) for slot in slots])


def _slot_line(slot: api.SlotInfo) -> str:
    label = f"  {clean(slot.label)}" if slot.label else ""
    yours = "  (opened by)" if slot.is_yours else ""
    return f"{slot.id}  {slot.kind:10}  {from_us(slot.created_us):%Y-%m-%d}{label}{yours}"


@command("add", "stepkeep key add --new-file /media/usb/key --label usb", group=key)
@new_key
@click.option("--label", default="", metavar="TEXT", help="By what a person recognises the slot.")
def add(
    settings: CommonOptions,
    file: str | None,
    new_file: str | None,
    shell: str | None,
    passphrase: bool,
    label: str,
) -> None:
    """Add a slot: one key more opens the store."""
    with opened(settings) as store:
        added = store.keys.add(_needed(_given(file, new_file, shell, passphrase)), label=label)
    settings.show(added, lambda slot: lines([_slot_line(slot)]))


@command("remove", "stepkeep key remove 3f2a", group=key)
@click.argument("slot", metavar="SLOT")
def remove(settings: CommonOptions, slot: str) -> None:
    """Remove the slot SLOT, named by the beginning of its id: its key opens the store no more.

    Who had that key may have kept what it opened, and may have a copy of the store.
    """
    with opened(settings) as store:
        store.keys.remove(slot)
        settings.show(list(store.keys.list()), _print_slots)


@command("rotate", "stepkeep key rotate --new-file ~/.config/stepkeep/key-2027", group=key)
@new_key
def rotate(
    settings: CommonOptions, file: str | None, new_file: str | None, shell: str | None, passphrase: bool
) -> None:
    """Put another key in place of the one that this command opened the store with."""
    with opened(settings) as store:
        rotated = store.keys.rotate(_needed(_given(file, new_file, shell, passphrase)))
    settings.show(rotated, lambda slot: lines([_slot_line(slot)]))


@command("rekey", REKEY_EXAMPLE, group=key)
@click.option("--drop-slots", is_flag=True, help="Remove all slots but the one that this command uses.")
@click.option("--dry-run", is_flag=True, help="Only tell what is left to do. Needs no key.")
def rekey(settings: CommonOptions, drop_slots: bool, dry_run: bool) -> int:
    """Give the store a new data key, and encrypt everything anew with it, while the store is in use.

    Who kept the old key can then read nothing any more. The new key can only be put into the slot that this command
    uses: other slots are refused unless --drop-slots removes them; add them again afterwards. It can be stopped at any
    time; called again, it goes on. Exits with 4 when damaged records keep the old key in the store.
    """
    if dry_run:
        with opened_without_key(settings) as store:
            report = store.keys.rekey(dry_run=True)
    else:
        with told_to_end(), opened(settings) as store, ProgressLine("encrypting anew", 100) as progress:
            report = store.keys.rekey(drop_slots=drop_slots, progress=progress.reached)
    settings.show(report, lambda report: _print_rekeyed(report, dry_run))
    return DAMAGE if report.damaged else 0


def _print_rekeyed(report: api.RekeyReport, dry_run: bool) -> None:
    if report.damaged:
        text = (
            f"{count(report.damaged, 'record')} could not be read: the old key stays, see `stepkeep verify`"
        )
    elif not report.is_done:
        text = _unfinished(report)
    elif dry_run:
        text = f"Everything is encrypted with data key {report.key}"
    else:
        text = f"Encrypted {count(report.renewed, 'record')} anew with data key {report.key}; the old key is gone"
    lines([text])
