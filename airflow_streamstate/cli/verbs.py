"""The table of verbs, whose modules are imported on use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

import click

from airflow_streamstate.cli.options import ORDER_OPTIONS, WIDTH, Shared, is_short, write_described, write_named
from airflow_streamstate.frozen import dataclass

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}


@dataclass(frozen=True)
class Interrupted:
    """What Ctrl-C leaves: after ``interrupted;``, and the next step, in which ``{stream}`` is the stream."""

    message: str
    next_step: str = ""


ORDERED = Interrupted("a recorded order continues", "`streamstate status {stream}` shows its state.")
LOOKED = Interrupted("nothing was changed")
AGAIN = Interrupted("what was done stays", "Run the same command again to continue.")
UPGRADED = Interrupted(
    "an upgrade or rollback that was started stays under way",
    "`streamstate status {stream}` names it, `streamstate continue {stream}` continues it.",
)
ADOPTED = Interrupted(
    "unless the running query was adopted, its barrier was withdrawn",
    "Run the same command again to adopt it; `streamstate adopt {stream} --give-up` makes sure that it is free.",
)
REHEARSED = Interrupted("the rehearsal was ended, and the stream was not touched")
REPLAYED = Interrupted("the replay was ended, and the stream was not touched")


@dataclass(frozen=True)
class Entry:
    """One verb, or a group of them.

    Attributes:
        help: one line.
        module, name: of its command; "" for a group.
        interrupted: what Ctrl-C leaves.
        verbs: of a group, by name.
    """

    help: str
    module: str = ""
    name: str = ""
    interrupted: Interrupted = ORDERED
    verbs: Mapping[str, Entry] = field(default_factory=dict)


SNAPSHOT_VERBS = {
    "create": Entry("Keep a committed batch of every query of a running stream.", "snapshots", "create"),
    "list": Entry("The complete snapshots of a stream.", "snapshots", "list_", LOOKED),
    "inspect": Entry("Show the state in a snapshot.", "state", "inspect", LOOKED),
    "verify": Entry("Read every byte of a snapshot, and name what is wrong.", "snapshots", "verify", LOOKED),
    "pin": Entry("Protect a snapshot from pruning.", "snapshots", "pin", AGAIN),
    "unpin": Entry("Allow the pruning of a snapshot again.", "snapshots", "unpin", AGAIN),
    "export": Entry("Write the state in a snapshot as tables.", "state", "export", AGAIN),
    "diff": Entry("Compare the state in two snapshots.", "state", "diff", LOOKED),
    "retention": Entry("Show or change which snapshots of a stream stay.", "snapshots", "retention", AGAIN),
    "prune": Entry("Remove snapshots that are no longer needed, and leftovers.", "snapshots", "prune", AGAIN),
}
HOME_VERBS = {
    "doctor": Entry("Check this machine and the home, and report how to fix them.", "doctor", "doctor", LOOKED),
    "restore": Entry("Restore a home from mirrors.", "snapshots", "restore", AGAIN),
    "mirror": Entry("Copy a stream's snapshots to its mirrors now.", "snapshots", "mirror", AGAIN),
    "sign": Entry("Show what the signing key has not signed, and sign it.", "doctor", "sign", AGAIN),
}
SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Start": {
        "deploy": Entry("Make a script the next version of a stream, and start it.", "start", "deploy"),
        "resume": Entry("Start the current version of a stream again.", "start", "resume"),
        "adopt": Entry("Continue a query that ran without streamstate, as a stream.", "start", "adopt", ADOPTED),
        "skip": Entry("Commit a batch that always fails without its rows, and continue.", "orders", "skip"),
    },
    "Restart": {
        "watch": Entry("Watch every stream of the home; restart those that fail.", "watch", "watch", AGAIN),
        "policy": Entry("Show or change what happens when a stream fails.", "watch", "policy", AGAIN),
        "alerts": Entry("Show or change when people are notified about a stream.", "watch", "alerts", AGAIN),
        "label": Entry("Show or change the owner and the labels of a stream.", "watch", "label", AGAIN),
    },
    "Stop": {
        "stop": Entry("Stop after the batch in flight, and keep the state.", "orders", "stop"),
        "drain": Entry("Take no new input, flush every window and timer, and end.", "orders", "drain"),
        "kill": Entry("End the driver at once, batch in flight or not.", "orders", "kill"),
        "retire": Entry("End a stream for good; --delete removes it.", "snapshots", "retire", AGAIN),
    },
    "Upgrade": {
        "plan": Entry("Report whether a change fits, before anything is stopped.", "upgrade", "plan", REHEARSED),
        "upgrade": Entry("Change the version, rehearsed before, undone if it fails.", "upgrade", "upgrade", UPGRADED),
        "rescale": Entry("Give the state of a stream another number of partitions.", "upgrade", "rescale", UPGRADED),
        "restart": Entry("Hand the state over to a new driver of the same version.", "upgrade", "restart", UPGRADED),
        "rollback": Entry("Go back to the version before, in the first exact way.", "upgrade", "rollback", UPGRADED),
    },
    "Under way": {
        "continue": Entry("Continue the upgrade or rollback that is under way.", "orders", "continue_", UPGRADED),
        "approve": Entry("Approve the plan of the waiting upgrade.", "orders", "approve", UPGRADED),
        "reject": Entry("Reject it: nothing is changed.", "orders", "reject", UPGRADED),
        "cancel": Entry("Abandon the upgrade, rollback or drain that is under way.", "orders", "cancel"),
    },
    "Files": {
        "validate": Entry("Check the files of streams, each problem with its line.", "declared", "validate", LOOKED),
        "diff": Entry("Show what apply would do with the files of streams.", "declared", "diff", LOOKED),
        "apply": Entry("Make the streams of the home as their files declare.", "declared", "apply", AGAIN),
        "export": Entry("Write the file of a stream, with its code.", "declared", "export", AGAIN),
    },
    "Look": {
        "list": Entry("All streams of this home, one line each.", "look", "list_", LOOKED),
        "status": Entry("The state of a stream, and of each of its queries.", "look", "status", LOOKED),
        "events": Entry("The events of a deployment, oldest first.", "look", "events", LOOKED),
        "logs": Entry("Print the log of the driver.", "look", "logs", LOOKED),
        "replay": Entry("Run recorded batches again, into files and no sink.", "replay", "replay", REPLAYED),
        "audit": Entry("Check that each deployment started exactly where the last one ended.", "look", "audit", LOOKED),
    },
    "Groups": {
        "snapshot": Entry(
            "create, list, inspect, verify, pin, unpin, export, diff, retention, prune.", verbs=SNAPSHOT_VERBS
        ),
        "home": Entry("doctor, restore, mirror, sign.", verbs=HOME_VERBS),
    },
}


def entry_of(verb: str) -> Entry | None:
    """The entry of a verb by its words, such as ``snapshot list``; None for what is no verb."""
    names = verb.split()
    found = {name: entry for entries in SECTIONS.values() for name, entry in entries.items()}
    entry = found.get(names[0]) if names else None
    return entry.verbs.get(names[1]) if entry is not None and len(names) > 1 else entry


def flags_of(verb: str) -> dict[str, str]:
    """The options of a verb by the names of their values, of those names that are no plain words."""
    entry = entry_of(verb)
    if entry is None or entry.verbs:
        return {}
    found = [one for one in _command(verb, entry).params if isinstance(one, click.Option)]
    return {str(one.name): max(one.opts, key=len) for one in found if "_" in str(one.name)}


class Verbs(Shared, click.Group):
    """A group whose verbs are listed by section, and imported on use."""

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
        common = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        orders = list(ORDER_OPTIONS.values())
        if is_short(ctx):
            write_named(formatter, "Options", {"All verbs": common, "Orders": orders})
        else:
            write_described(ctx, formatter, {"Options of every verb": common, "Options of every order": orders})
        self.format_verbs(formatter)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_help_text(self, ctx, formatter)  # all of it

    def format_verbs(self, formatter: click.HelpFormatter) -> None:
        """Write the verbs, section by section."""
        for title, entries in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, without importing any, and the options."""
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
