"""``snapshot pin``, ``unpin`` and ``prune``, and ``retire``: what is kept, and what goes."""

from __future__ import annotations

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import Order, Ordering, Seconds, Verb, option, pass_session, stream_argument
from airflow_streamstate.cli.session import Session
from airflow_streamstate.controller.retention.deciding import KEPT_SNAPSHOTS, RetentionPolicy

MAX_AGE_SECONDS = 100 * 365 * 86_400.0


@click.command(cls=Verb)
@stream_argument
@option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Keep so many of the newest, whatever their age; {KEPT_SNAPSHOTS} where no age is given, else 0.",
)
@option(
    "--older-than",
    "older_than_seconds",
    type=Seconds(0, MAX_AGE_SECONDS),
    metavar="SECONDS",
    help="Remove only what was taken, and last read, longer ago than this.",
)
@option("--at-mirrors", is_flag=True, help="At its mirrors, too: what the home has replaced by newer ones.")
@option("--dry-run", is_flag=True, help="Only say what would go, and why; nothing is changed.")
@pass_session
def prune(
    session: Session,
    /,
    stream_id: str,
    keep: int | None,
    older_than_seconds: float | None,
    at_mirrors: bool,
    dry_run: bool,
) -> None:
    """Remove the snapshots of STREAM that nothing needs, and what its deployments left behind.

    Kept whatever is asked for: pinned and leased snapshots, the last known good one, and each that a start, a rollback
    or an undo may go back to. Age counts from the last use. It may be run at any time, beside anything else.
    """
    policy = RetentionPolicy(keep, older_than_seconds)
    with session.progress(f"pruning {stream_id}"):
        pruned = session.controller().retention.prune(stream_id, policy, is_dry=dry_run, at_mirrors=at_mirrors)
        result = pruned.to_json()
    session.emit(result, lambda console: render.pruned(console, result))


@click.command(cls=Verb)
@stream_argument
@click.argument("snapshot_id", metavar="SNAPSHOT")
@pass_session
def pin(session: Session, /, stream_id: str, snapshot_id: str) -> None:
    """Keep SNAPSHOT of STREAM whatever is pruned, until it is unpinned."""
    session.controller().retention.pin(stream_id, snapshot_id)
    _say_pinned(session, stream_id, snapshot_id, is_pinned=True)


@click.command(cls=Verb)
@stream_argument
@click.argument("snapshot_id", metavar="SNAPSHOT")
@pass_session
def unpin(session: Session, /, stream_id: str, snapshot_id: str) -> None:
    """Let SNAPSHOT of STREAM be pruned again when nothing needs it."""
    session.controller().retention.unpin(stream_id, snapshot_id)
    _say_pinned(session, stream_id, snapshot_id, is_pinned=False)


def _say_pinned(session: Session, stream_id: str, snapshot_id: str, *, is_pinned: bool) -> None:
    result = {"stream_id": stream_id, "snapshot_id": snapshot_id, "pinned": is_pinned}
    session.emit(result, lambda console: render.pinned(console, result))


@click.command(cls=Order, takes=("reason",))
@stream_argument
@option("--delete", "deletes", is_flag=True, help="Remove everything of it. There is no way back.")
@pass_session
def retire(session: Session, /, stream_id: str, deletes: bool, ordering: Ordering) -> None:
    """Mark STREAM, which has ended, as one that is not to run any more: only `deploy --revive` starts it again.

    With --delete everything of it is removed, snapshots and pins among it; cut short, the same command goes on.
    """
    with session.progress(f"retiring {stream_id}"):
        result = session.controller().retention.retire(stream_id, reason=ordering.reason, deletes=deletes).to_json()
    session.emit(result, lambda console: render.retired(console, result))
