"""``verify``: whether a snapshot is whole, byte for byte, and with ``--deep`` whether Spark can load its state."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.exits import status_of_findings
from airflow_streamstate.cli.options import HelpfulCommand, pass_session, shared, stream_argument
from airflow_streamstate.cli.session import Session
from airflow_streamstate.cli.start import split
from airflow_streamstate.cli.state import reader_driver_options
from airflow_streamstate.controller.state_reader.choosing import ReadingRequest
from airflow_streamstate.controller.state_reader.verifying import verify_snapshot

DRIVER_OPTIONS = {"deadline_seconds": "--wait", "packages": "--packages", "conf": "--conf", "master": "--master"}


@click.command(cls=HelpfulCommand, short_help="Read every byte of a snapshot, and name what is wrong.")
@stream_argument
@click.argument("snapshot_id", metavar="SNAPSHOT")
@click.option("--deep", is_flag=True, help="Load its state with Spark, too: every row of every partition.")
@reader_driver_options
@shared
@pass_session
def verify(
    session: Session, /, stream_id: str, snapshot_id: str, deep: bool, packages: tuple[str, ...], **rest: Any
) -> int:
    """Read every byte of SNAPSHOT, and name what is missing or altered.

    With --deep a Spark driver of its own on this machine then loads the state from a fork of it, and counts its rows;
    --wait, --conf, --packages and --master are about that driver.

    Exit status 1 if anything is wrong. `streamstate snapshots STREAM` lists the ids.
    """
    if not deep:
        _refuse_driver_options()
    request = ReadingRequest(stream_id=stream_id, snapshot_id=snapshot_id, packages=split(packages), **rest)
    controller = session.controller()
    with session.progress(f"verifying {snapshot_id}") as on_progress:
        result = verify_snapshot(controller.snapshots, controller.readings, request, deep=deep, on_progress=on_progress)
    session.emit(result, lambda console: tables.verified(console, result))
    return status_of_findings(is_well=result["ok"])


def _refuse_driver_options() -> None:
    context = click.get_current_context()
    for name, option in DRIVER_OPTIONS.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is about the driver of --deep: give --deep, or leave it out")
