"""A full disk, said where a person would look for the reason: nothing that runs on one can say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import Console

from airflow_streamstate.cli.tables import shown
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.full_disks import full_disks
from airflow_streamstate.errors import StreamStateError


def in_words(folders: Sequence[str]) -> str:
    """What a full disk means for whoever waits for a driver on it."""
    which = " and ".join(folders)
    return f"The disk of {which} is full: what runs there can neither write nor give a sign of life. Free some space."


def show(console: Console, folders: Sequence[str]) -> None:
    """Below a status; nothing where no disk is full."""
    if folders:
        console.print(shown(f"-> {in_words(folders)}", "bold red"))


def name_full_disks(error: StreamStateError, open_home: Callable[[], Home]) -> None:
    """Say in the error's next step which disks of a home are full; it stays as it is where none is.

    Args:
        error: of a wait that came to nothing, or of a job that failed.
        open_home: the home of the stream.
    """
    with suppress(StreamStateError):
        folders = full_disks(open_home())
        if folders:
            error.next_step = f"{in_words(folders)} {error.next_step}".strip()
