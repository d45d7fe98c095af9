"""``home mirror`` and ``home restore``: copy snapshots to mirrors, and restore a home from them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.exits import status_of_several
from airflow_streamstate.cli.naming import allow_stores
from airflow_streamstate.cli.options import Verb, option, pass_session, stream_argument
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.order import MirrorTerms

if TYPE_CHECKING:
    from airflow_streamstate.snapshot.copy import CopyProgress

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

        for uri, done in controller.mirrors.copy(
            stream_id,
            stores,
            batch_bytes=fetch_batch_bytes,
            timeout_seconds=fetch_timeout_seconds,
            on_progress=tell,
        ):
            facts = {"snapshot_id": done.snapshot_id, "mirror": uri, "files": done.files, "bytes": done.size_bytes}
            rows.append(facts)
    session.emit({"stream_id": stream_id, "snapshots": rows}, lambda console: render.mirrored(console, rows))


@click.command(cls=Verb)
@option("--from", "uris", multiple=True, required=True, metavar="URI", help="A mirror. Repeatable: all are read.")
@option("--stream", "stream_ids", multiple=True, metavar="STREAM", help="Only this stream. Repeatable.")
@option(
    "--accept-duplicates",
    is_flag=True,
    help="Also restore a snapshot after which the stream ran on: its later rows come again, into sinks that may hold"
    " them.",
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
    from airflow_streamstate.controller.restore_home import Restoring

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
            next_step="Correct the URI: it is what --mirror or --to said, without the name of a stream.",
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
