"""The table of verbs: what each is for, and the module that has it, which is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from airflow_streamstate.cli.options import ORDER_OPTIONS, WIDTH, Shared

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}


@dataclass(frozen=True)
class Entry:
    """One verb, or a group of them.

    Attributes:
        help: what it is for, in one line.
        module, name: where its command is; "" for a group.
        verbs: of a group, by name.
    """

    help: str
    module: str = ""
    name: str = ""
    verbs: Mapping[str, Entry] = field(default_factory=dict)


SNAPSHOT_VERBS = {
    "create": Entry("Keep a committed batch of every query, while it runs on.", "snapshots", "create"),
    "list": Entry("The complete snapshots of a stream.", "snapshots", "list_"),
    "inspect": Entry("What the state in a snapshot holds.", "state", "inspect"),
    "verify": Entry("Read every byte of a snapshot, and name what is wrong.", "snapshots", "verify"),
    "pin": Entry("Keep a snapshot whatever is pruned.", "retention", "pin"),
    "unpin": Entry("Let a pinned snapshot be pruned again.", "retention", "unpin"),
    "export": Entry("Write the state in a snapshot as tables.", "state", "export"),
    "diff": Entry("What became of the state between two snapshots.", "state", "diff"),
    "prune": Entry("Remove snapshots that nothing needs, and what deployments left.", "retention", "prune"),
}
HOME_VERBS = {
    "doctor": Entry("What this machine lacks, and how to mend it.", "doctor", "doctor"),
    "restore": Entry("Make a home again from mirrors.", "mirrors", "restore"),
    "mirror": Entry("Copy a stream's snapshots to its mirrors now.", "mirrors", "mirror"),
}
SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Start": {
        "deploy": Entry("Make a script the next version of a stream, and start it.", "start", "deploy"),
        "resume": Entry("Start the current version of a stream again.", "start", "resume"),
        "adopt": Entry("Go on with a query that ran without streamstate, as a stream.", "adopt", "adopt"),
        "skip": Entry("Commit a batch that always fails without its rows, and go on.", "orders", "skip"),
    },
    "Stop": {
        "stop": Entry("End after the batch in flight, and keep the state.", "orders", "stop"),
        "drain": Entry("Take no new input, flush every window and timer, end.", "orders", "drain"),
        "kill": Entry("End the driver at once, batch in flight or not.", "orders", "kill"),
        "retire": Entry("End a stream for good; with --delete nothing of it stays.", "retention", "retire"),
    },
    "Upgrade": {
        "plan": Entry("Say whether a change fits, before anything is stopped.", "plan", "plan"),
        "upgrade": Entry("To another version, known before it stops, undone when it fails.", "upgrade", "upgrade"),
        "restart": Entry("The same version in a new driver, its state handed over.", "upgrade", "restart"),
        "rollback": Entry("Back to the version before, in the first way that is exact.", "upgrade", "rollback"),
    },
    "Under way": {
        "continue": Entry("Go on with the upgrade or rollback that is under way.", "under_way", "continue_"),
        "approve": Entry("Say yes to the plan of the upgrade that waits for it.", "under_way", "approve"),
        "reject": Entry("Say no to it: the stream runs on as before.", "under_way", "reject"),
        "cancel": Entry("Give up the upgrade, rollback or drain that is under way.", "under_way", "cancel"),
    },
    "Look": {
        "list": Entry("All streams of this home, one line each.", "look", "list_"),
        "status": Entry("Where a stream, and each of its queries, stands.", "look", "status"),
        "events": Entry("What a deployment said, oldest first.", "look", "events"),
        "logs": Entry("Print the log of the driver.", "look", "logs"),
        "audit": Entry("Whether every deployment began exactly where its predecessor ended.", "look", "audit"),
    },
    "Groups": {
        "snapshot": Entry("create, list, inspect, verify, pin, unpin, export, diff, prune.", verbs=SNAPSHOT_VERBS),
        "home": Entry("doctor, restore, mirror.", verbs=HOME_VERBS),
    },
}


class Verbs(Shared, click.Group):
    """A group whose verbs are listed by what they are for, and imported when they are used."""

    def __init__(self, name: str, sections: Mapping[str, Mapping[str, Entry]], help: str) -> None:
        super().__init__(
            name,
            help=help,
            context_settings=dict(SETTINGS),
            subcommand_metavar="VERB [STREAM] ...",
            no_args_is_help=False,
        )
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*(name for entries in self.sections.values() for name in entries), *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entries = (entries[cmd_name] for entries in self.sections.values() if cmd_name in entries)
        entry = next(entries, None)
        return super().get_command(ctx, cmd_name) if entry is None else _command(cmd_name, entry)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shared = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        for title, options in (("Options of every verb", shared), ("Options of every order", ORDER_OPTIONS.values())):
            with formatter.section(title):
                formatter.write_dl([record for one in options if (record := one.get_help_record(ctx))])
        self.format_verbs(formatter)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_help_text(self, ctx, formatter)  # the whole of it

    def format_verbs(self, formatter: click.HelpFormatter) -> None:
        """Write the verbs, section by section."""
        for title, entries in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs that begin so, without importing any; the options are completed as of every command."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry.help)
            for entries in self.sections.values()
            for name, entry in entries.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


class Group(Verbs):
    """A group below the first one; its help is the list of its verbs."""

    def format_options(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_verbs(formatter)


def _command(name: str, entry: Entry) -> click.Command:
    if entry.verbs:
        return Group(name, {"Verbs": entry.verbs}, f"{name.capitalize()}: {entry.help}")
    command = getattr(importlib.import_module(f"airflow_streamstate.cli.{entry.module}"), entry.name)
    assert isinstance(command, click.Command)  # noqa: S101 - of the table above
    command.name, command.short_help = name, entry.help
    return command


def paths() -> Iterator[tuple[str, ...]]:
    """Every verb as the words that name it: ``("deploy",)``, ``("snapshot", "create")``."""
    for entries in SECTIONS.values():
        for name, entry in entries.items():
            yield from ((name, verb) for verb in entry.verbs) if entry.verbs else ((name,),)
