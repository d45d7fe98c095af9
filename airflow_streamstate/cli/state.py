"""``state`` and ``diff``: what the state of a stream holds, and what became of it between two snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from airflow_streamstate.cli import state_tables
from airflow_streamstate.cli.exits import status_of_findings
from airflow_streamstate.cli.options import HelpfulCommand, Seconds, conf_option, pass_session, shared, stream_argument
from airflow_streamstate.cli.session import Session
from airflow_streamstate.cli.start import split
from airflow_streamstate.controller.state_reader.choosing import (
    DEADLINE_SECONDS,
    LOCAL_MASTER,
    SHOWN_ROWS,
    ReadingRequest,
    parse_key,
)
from airflow_streamstate.snapshot.state_order import EXPORT_FORMATS

Verb = TypeVar("Verb", bound=Callable[..., Any])
MOST_ROWS = 10_000


def reader_driver_options(verb: Verb) -> Verb:
    """Of the driver that reads."""
    for option in (
        click.option(
            "--wait", "deadline_seconds", type=Seconds(1.0), default=DEADLINE_SECONDS, show_default=True,
            metavar="SECONDS", help="How long the reading may take; then it is ended.",
        ),
        click.option(
            "--packages", multiple=True, metavar="COORDINATES",
            help="Maven packages beside those of the deployment, with commas or repeated.",
        ),
        conf_option,
        click.option(
            "--master", metavar="URL", default=LOCAL_MASTER, show_default=True,
            help="Spark's master for the driver that reads.",
        ),
    ):  # fmt: skip
        verb = option(verb)
    return verb


def _reader_options(verb: Verb) -> Verb:
    """What every reading that shows rows may be given."""
    for option in (
        reader_driver_options,
        click.option(
            "--limit", type=click.IntRange(1, MOST_ROWS), default=SHOWN_ROWS, show_default=True, metavar="N",
            help="How many rows are shown at most, of each table.",
        ),
        click.option("--query", "query_name", metavar="NAME", help="This query alone."),
    ):  # fmt: skip
        verb = option(verb)
    return verb


@click.command(cls=HelpfulCommand, short_help="What the state of a stream holds.")
@stream_argument
@click.option("--snapshot", "snapshot_id", metavar="ID", help="Which snapshot; the newest one with state by default.")
@click.option("--key", "key_text", metavar="JSON", help="Show the rows whose key has these columns and values.")
@click.option("--out", metavar="URI", help="Write the state there as tables: a folder, or what Spark can write to.")
@click.option(
    "--format",
    type=click.Choice(EXPORT_FORMATS),
    default="parquet",
    show_default=True,
    help="Of what --out writes. Delta needs its --packages and --conf, if the deployment has them not.",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export that lies there; nothing else ever is.")
@click.option(
    "--changes-since",
    "since_snapshot_id",
    metavar="ID",
    help="Write to --out what makes the state of this older snapshot the newer one: upserts and deletes.",
)
@_reader_options
@shared
@pass_session
def state(session: Session, /, stream_id: str, key_text: str | None, packages: tuple[str, ...], **rest: Any) -> int:
    """Show what the state of STREAM holds, at a snapshot.

    Operators, partitions, rows, bytes, skew, variables with their kinds, timers with the next one to fire. It is read
    from a fork of the snapshot, by a Spark driver of its own on this machine; the stream may run meanwhile.

    Exit status 1 if some of it could not be read.
    """
    if rest["out"] is None and (rest["overwrite"] or rest["since_snapshot_id"] is not None):
        raise click.UsageError("--overwrite and --changes-since are about what --out writes: give --out")
    if key_text is not None and rest["since_snapshot_id"] is not None:
        raise click.UsageError("--key chooses rows of a state, and --changes-since writes changes: leave out one")
    key = None if key_text is None else parse_key(key_text)
    request = ReadingRequest(stream_id=stream_id, key=key, packages=split(packages), **rest)
    controller = session.controller()
    with session.progress(f"{stream_id}: reading state") as on_progress:
        result = controller.readings.look(request, on_progress)
    session.emit(result, lambda console: state_tables.state(console, result))
    export = result["export"] or {"problems": []}
    problems = [*export["problems"], *(one for query in result["queries"].values() for one in query["problems"])]
    return status_of_findings(is_well=not problems)


@click.command(cls=HelpfulCommand, short_help="What became of the state between two snapshots.")
@stream_argument
@click.argument("since_snapshot_id", metavar="SNAPSHOT")
@click.argument("snapshot_id", metavar="SNAPSHOT")
@_reader_options
@shared
@pass_session
def diff(session: Session, /, stream_id: str, packages: tuple[str, ...], **rest: Any) -> int:
    """Show which keys of the state of STREAM were added, changed and are gone from the first SNAPSHOT to the second.

    Per operator and variable: how many, and the first of each. Refused where the two have not the same operators.

    Exit status 1 if some of it could not be read.
    """
    request = ReadingRequest(stream_id=stream_id, packages=split(packages), **rest)
    controller = session.controller()
    with session.progress(f"{stream_id}: comparing state") as on_progress:
        result = controller.readings.diff(request, on_progress)
    session.emit(result, lambda console: state_tables.diff(console, result))
    return status_of_findings(is_well=not any(query["problems"] for query in result["queries"].values()))
