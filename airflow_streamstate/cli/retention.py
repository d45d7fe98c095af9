"""``snapshot pin``, ``unpin`` and ``prune``, and ``retire``."""

from __future__ import annotations

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import Ordering, OrderVerb, Seconds, Verb, option, pass_session, stream_argument
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.controller.retention.deciding import KEPT_SNAPSHOTS, RetentionPolicy

MAX_AGE_SECONDS = 100 * 365 * 86_400.0


@click.command(cls=Verb)
@stream_argument
@option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Keep so many of the newest at any age; by default {KEPT_SNAPSHOTS} without --older-than, else 0.",
)
@option(
    "--older-than",
    "older_than_seconds",
    type=Seconds(0, MAX_AGE_SECONDS),
    metavar="SECONDS",
    help="Only remove snapshots taken, and last read, longer ago than this.",
)
@option("--at-mirrors", is_flag=True, help="Also remove copies at its mirrors that newer snapshots have replaced.")
@option("--dry-run", is_flag=True, help="Only show what would be removed, and why.")
@pass_session
def prune(
    session: ShellSession,
    /,
    stream_id: str,
    keep: int | None,
    older_than_seconds: float | None,
    at_mirrors: bool,
    dry_run: bool,
) -> None:
    """Remove the snapshots of STREAM that are no longer needed, and the leftovers of its deployments.

    Pinned and leased snapshots, the last known good one, and each that a start, a rollback or an undo may need are
    always kept. Age counts from the last use. Pruning may run at any time, beside any other command.
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
@option("--delete", "deletes", is_flag=True, help="Remove the whole stream. This cannot be undone.")
@pass_session
def retire(session: ShellSession, /, stream_id: str, deletes: bool, ordering: Ordering) -> None:
    """Mark STREAM, which has ended, as retired: only `deploy --revive` starts it again.

    --delete removes the whole stream, with all snapshots, pinned ones too; after an interruption the same command
    continues.
    """
    with session.progress(f"retiring {stream_id}"):
        result = session.controller().retention.retire(stream_id, reason=ordering.reason, deletes=deletes).to_json()
    session.emit(result, lambda console: render.retired(console, result))
