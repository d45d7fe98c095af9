"""``snapshot pin``, ``unpin``, ``retention`` and ``prune``, and ``retire``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import Ordering, OrderVerb, Verb, option, pass_session, stream_argument
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options, values_given
from airflow_streamstate.protocol.retention import RetentionPolicy
from airflow_streamstate.protocol.terms.order import PruneTerms, RetireTerms


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
    result = {"stream_id": stream_id, "retention": None if found is None else asdict(found)}
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
    always kept. Age counts from the last use. Pruning may run at any time, beside any other command.
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
