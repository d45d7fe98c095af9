"""``snapshot create``, ``list``, ``verify``, ``pin``, ``prune``; ``retire``; ``home mirror`` and ``home restore``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.naming import allow_stores
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    Verb,
    is_given,
    option,
    pass_session,
    stream_argument,
    term_options,
    terms_given,
    values_given,
)
from airflow_streamstate.cli.session import ShellSession, status_of_findings, status_of_several
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.order import (
    Expiry,
    MirrorTerms,
    PruneTerms,
    ReaderTerms,
    RetireTerms,
    SnapshotTerms,
    VerifyTerms,
)

if TYPE_CHECKING:
    from airflow_streamstate.snapshot.copy import CopyProgress


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
    from airflow_streamstate.cli.orders import emit_order, wait_for

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
    from airflow_streamstate.controller.scratch.readings import ReadingRequest

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


# ``snapshot pin``, ``unpin``, ``retention`` and ``prune``, and ``retire``.


@click.command(cls=Verb)
@stream_argument
@term_options(RetentionPolicy, stays=True)
@option("--none", "removes", is_flag=True, help="Record no retention: the stream is pruned only when that is asked.")
@pass_session
def retention(session: ShellSession, /, stream_id: str, removes: bool, **given: Any) -> None:
    """Show which snapshots of STREAM stay when it is pruned, or change it.

    Without options it only shows the retention. With options they are all of it. `streamstate watch` prunes a stream
    that has one, and `snapshot prune` without options goes by it.
    """
    values = values_given(RetentionPolicy, given)
    if removes and values:
        raise click.UsageError("--none records no retention: leave out the other options.")
    details = session.controller().details
    if removes or values:
        found = details.change_retention(stream_id, RetentionPolicy.of(values))
    else:
        found = details.retention(stream_id)
    result = {"stream_id": stream_id, "retention": None if found is None else selected(found, "*")}
    session.emit(result, lambda console: render.retention(console, result))


@click.command(cls=Verb)
@stream_argument
@term_options(RetentionPolicy, stays=True)
@term_options(PruneTerms)
@pass_session
def prune(session: ShellSession, /, stream_id: str, dry_run: bool, **given: Any) -> None:
    """Remove the snapshots of STREAM that are no longer needed, and the leftovers of its deployments.

    Without --keep and --older-than the retention of the stream decides, which `snapshot retention` shows; where it has
    none, the newest 10 stay.

    Pinned and leased snapshots, the last known good one, and each that a start, a rollback or an undo may need are
    always kept. Age counts from the last use. Pruning may run at any time, with any other command.
    """
    values = values_given(RetentionPolicy, given)
    at_mirrors = values.pop("at_mirrors", None)  # without the other two also by the stream's own policy
    with session.progress(f"pruning {stream_id}"):
        pruned = session.controller().retention.prune(
            stream_id, RetentionPolicy.of(values), is_dry=dry_run, at_mirrors=at_mirrors
        )
        result = pruned.to_json()
    session.emit(result, lambda console: render.pruned(console, result))


@click.command(cls=Verb)
@stream_argument
@click.argument("snapshot_id", metavar="SNAPSHOT")
@pass_session
def pin(session: ShellSession, /, stream_id: str, snapshot_id: str) -> None:
    """Protect SNAPSHOT of STREAM from pruning until it is unpinned."""
    session.controller().retention.pin(stream_id, snapshot_id)
    _say_pinned(session, stream_id, snapshot_id, is_pinned=True)


@click.command(cls=Verb)
@stream_argument
@click.argument("snapshot_id", metavar="SNAPSHOT")
@pass_session
def unpin(session: ShellSession, /, stream_id: str, snapshot_id: str) -> None:
    """Allow the pruning of SNAPSHOT of STREAM again."""
    session.controller().retention.unpin(stream_id, snapshot_id)
    _say_pinned(session, stream_id, snapshot_id, is_pinned=False)


def _say_pinned(session: ShellSession, stream_id: str, snapshot_id: str, *, is_pinned: bool) -> None:
    result = {"stream_id": stream_id, "snapshot_id": snapshot_id, "pinned": is_pinned}
    session.emit(result, lambda console: render.pinned(console, result))


@click.command(cls=OrderVerb, takes=("reason",))
@stream_argument
@term_options(RetireTerms)
@pass_session
def retire(session: ShellSession, /, stream_id: str, delete: bool, ordering: Ordering) -> None:
    """Mark STREAM, which has ended, as retired: only `deploy --revive` starts it again.

    --delete removes the whole stream, with all snapshots, pinned ones too; after an interruption the same command
    continues.
    """
    with session.progress(f"retiring {stream_id}"):
        result = session.controller().retention.retire(stream_id, reason=ordering.reason, deletes=delete).to_json()
    session.emit(result, lambda console: render.retired(console, result))


# ``home mirror`` and ``home restore``: copy snapshots to mirrors, and restore a home from them.

_fetching_options = term_options(AgentSettings, "mirror", stays=True, has_all=True)


@click.command(cls=Verb)
@stream_argument
@term_options(MirrorTerms)
@_fetching_options
@pass_session
def mirror(
    session: ShellSession,
    /,
    stream_id: str,
    mirrors: tuple[str, ...],
    fetch_batch_bytes: int | None,
    fetch_timeout_seconds: float | None,
) -> None:
    """Copy every complete snapshot of STREAM to its mirrors, with the files that a deploy from there needs.

    The driver of a stream with --mirror does this itself while it runs. Only what is missing is copied, so the command
    can be interrupted and repeated.
    """
    allow_stores(session, mirrors)
    controller = session.controller()
    stores = controller.mirrors.chosen(stream_id, mirrors)
    rows = []
    with session.progress(f"mirroring {stream_id}") as report:

        def tell(uri: str, snapshot_id: str, progress: CopyProgress) -> None:
            report(f"{snapshot_id} to {uri}: {progress.sentence}")

        for done in controller.mirrors.copy(
            stream_id,
            stores,
            batch_bytes=fetch_batch_bytes,
            timeout_seconds=fetch_timeout_seconds,
            on_progress=tell,
        ):
            rows.append(done.to_json())
    session.emit({"stream_id": stream_id, "snapshots": rows}, lambda console: render.mirrored(console, rows))


@click.command(cls=Verb)
@option("--from", "uris", multiple=True, required=True, metavar="URI", help="A mirror. Repeatable: all are read.")
@option("--stream", "stream_ids", multiple=True, metavar="STREAM", help="Only this stream. Repeatable.")
@option(
    "--accept-duplicates",
    is_flag=True,
    help="Also restore a snapshot after which the stream ran on: its later rows are written again, into sinks that may"
    " hold them.",
)
@_fetching_options
@pass_session
def restore(
    session: ShellSession,
    uris: tuple[str, ...],
    stream_ids: tuple[str, ...],
    accept_duplicates: bool,
    fetch_batch_bytes: int | None,
    fetch_timeout_seconds: float | None,
) -> int:
    """Restore in --home every stream of the mirrors, so that `deploy STREAM` starts from its newest snapshot there.

    A stream that the home has stays as it is; named by --stream it is refused. Data comes from every mirror that
    answers, is verified as it arrives, and becomes a stream only when it is complete. A stream that cannot be restored
    does not hold up the others; it is reported, and the exit status is 1.
    """
    from airflow_streamstate.controller.mirrors import Restoring

    allow_stores(session, uris)
    controller = session.controller()
    mirrors = [controller.mirrors.open(uri) for uri in uris]
    restoring = Restoring(
        controller.home,
        mirrors,
        session.requested_by,
        batch_bytes=fetch_batch_bytes,
        timeout_seconds=fetch_timeout_seconds,
    )
    known = () if stream_ids else restoring.stream_ids()
    if not stream_ids and not known:
        raise InvalidRequestError(
            "these mirrors have no stream",
            mirrors=[mirror.uri for mirror in mirrors],
            next_step="Correct the URI: it is the value of --mirror or --to, without the name of a stream.",
        )
    wanted = stream_ids or tuple(
        name for name in known if controller.home.control(name, begins=True).register() is None
    )
    rows: list[dict[str, object]] = []
    refused: list[dict[str, object]] = []
    errors: list[StreamStateError] = []
    with session.progress("restoring") as report:
        for stream_id in wanted:

            def tell(progress: CopyProgress, stream_id: str = stream_id) -> None:
                report(f"{stream_id}: {progress.sentence}")

            try:
                found = restoring.restore(stream_id, accept_duplicates=accept_duplicates, on_progress=tell)
            except StreamStateError as error:
                if len(wanted) == 1:
                    raise
                errors.append(error)
                refused.append({"stream_id": stream_id, **error.to_json()})
            else:
                rows.append(found.to_json())
    session.emit(
        {"streams": rows, "refused": refused},
        lambda console: render.restored(console, rows) if rows or not refused else None,
    )
    for one in refused:
        row = {**one, "message": f"{one['stream_id']}: {one['message']}"}
        session.say(partial(render.error, row=row, verbose=session.is_verbose))
    return status_of_several(errors, len(rows))
