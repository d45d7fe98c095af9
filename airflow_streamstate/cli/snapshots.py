"""``snapshot create``, ``list`` and ``verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.exits import status_of_findings
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    Verb,
    is_given,
    option,
    pass_session,
    stream_argument,
)
from airflow_streamstate.cli.orders import emit_order, wait_for
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options, terms_given, values_given
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.order import Expiry, SnapshotTerms
from airflow_streamstate.protocol.terms.reading import ReaderTerms, VerifyTerms

if TYPE_CHECKING:
    pass


@click.command(cls=OrderVerb, waits_until="the snapshot is complete, and repeats the order while no driver takes it up")
@stream_argument
@option("--pin", "pins", is_flag=True, help="Protect it from pruning until `snapshot unpin`.")
@term_options(SnapshotTerms)
@term_options(Expiry)
@pass_session
def create(session: ShellSession, /, stream_id: str, pins: bool, ordering: Ordering, **given: Any) -> None:
    """Keep a committed batch of every query of STREAM, while it runs on.

    One request id is one snapshot: the order is repeated to a restarted driver or to a newer version until the snapshot
    is ready.
    """
    controller = session.controller()
    asked = controller.order(
        "snapshot", stream_id, terms=terms_given(SnapshotTerms, given), **values_given(Expiry, given), **ordering.facts
    )
    if pins:
        controller.retention.pin_ordered(asked)
    outcome = wait_for(session, controller, asked, ordering)
    if pins and outcome is not None and outcome.snapshot_id is not None:  # may be of a later attempt
        controller.retention.pin(stream_id, outcome.snapshot_id)
    emit_order(session, asked, outcome)


@click.command(cls=Verb)
@stream_argument
@pass_session
def list_(session: ShellSession, /, stream_id: str) -> int:
    """List the complete snapshots of STREAM, oldest first, with their sizes and what keeps them from pruning.

    Exit status 1 if a manifest is unreadable.
    """
    controller = session.controller()
    places = controller.mirrors_of(stream_id)
    rows = [
        {**kept.to_json(), "mirrors": places.get(kept.manifest.snapshot_id, [])}
        for kept in controller.kept_snapshots(stream_id)
    ]
    unreadable = controller.snapshots.unreadable(stream_id)
    result = {"snapshots": rows, "unreadable": unreadable}
    session.emit(result, lambda console: render.snapshots(console, stream_id, rows, unreadable))
    return status_of_findings(is_well=not unreadable)


@click.command(cls=Verb)
@stream_argument
@click.argument("snapshot_id", metavar="SNAPSHOT")
@term_options(VerifyTerms)
@term_options(ReaderTerms)
@pass_session
def verify(session: ShellSession, /, stream_id: str, snapshot_id: str, deep: bool, **given: Any) -> int:
    """Read every byte of SNAPSHOT, and name what is missing or altered.

    With --deep a Spark driver on this machine then loads the state from a fork, and counts its rows; --deadline,
    --conf, --packages and --master are about that driver.

    Exit status 1 if something is wrong. `streamstate snapshot list STREAM` lists the ids.
    """
    from airflow_streamstate.controller.scratch.reading_request import ReadingRequest

    if not deep:
        for one in terms_of(ReaderTerms):
            if is_given(one.name):
                raise click.UsageError(f"{one.flag} is about the driver of --deep: give --deep, or leave it out")
    request = ReadingRequest(stream_id=stream_id, snapshot_id=snapshot_id, **values_given(ReaderTerms, given))
    controller = session.controller()
    with session.progress(f"verifying {snapshot_id}") as on_progress:
        result = controller.readings.verify(request, deep=deep, on_progress=on_progress)
    session.emit(result, lambda console: render.verified(console, result))
    return status_of_findings(is_well=result["ok"])
