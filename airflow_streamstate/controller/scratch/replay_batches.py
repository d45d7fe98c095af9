"""Which recorded batches a replay runs again, and where their rows go. Reads checkpoints, writes nothing."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from pathlib import Path

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.trial_batches import batch_at, can_fork_before, planned_batches
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.s3a import plain_uri


def chosen_queries(
    checkpoints: Mapping[str, Checkpoint], deployment_id: str, query_name: str | None
) -> Mapping[str, Checkpoint]:
    """The queries that are replayed.

    Raises:
        InvalidRequestError: the deployment has no such query, or no checkpoint.
    """
    if not checkpoints:
        raise InvalidRequestError(
            "this deployment has no checkpoint: no query of it was started, or they were removed",
            deployment_id=deployment_id,
            next_step="`streamstate audit STREAM` lists the deployments; name another one with --deployment.",
        )
    if query_name is None:
        return checkpoints
    if query_name not in checkpoints:
        raise InvalidRequestError(
            "this deployment has no such query",
            deployment_id=deployment_id,
            query_name=query_name,
            queries=sorted(checkpoints),
            next_step="Name one of these with --query.",
        )
    return {query_name: checkpoints[query_name]}


def batch_chosen(name: str, checkpoint: Checkpoint, batch_id: int) -> tuple[int, ...]:
    """A batch that was named.

    Raises:
        InvalidRequestError: it never was, or its entries or the state of before it were cleaned up.
        DataError: the log is damaged.
    """
    planned = planned_batches(checkpoint)
    position = checkpoint.position()
    newest = position.last_batch_id
    if newest is None or batch_id > newest:
        raise InvalidRequestError(
            "the query has not planned this batch",
            query_name=name,
            batch_id=batch_id,
            newest_batch_id=newest,
            next_step=f"{_can_be_replayed(checkpoint, planned)} Name one of these with --batch.",
        )
    if batch_id not in planned or not can_fork_before(checkpoint, batch_id):
        raise InvalidRequestError(
            "the log of this batch, or the state of before it, was cleaned up",
            query_name=name,
            batch_id=batch_id,
            next_step=f"{_can_be_replayed(checkpoint, planned)} Name one of these with --batch, or an older deployment"
            " with --deployment.",
        )
    return (batch_id,)


def last_batches(name: str, checkpoint: Checkpoint, count: int, *, runs: bool) -> tuple[int, ...]:
    """The newest batches of a query, ascending, up to the one that is planned and not committed, or else to the newest
    one that read something: ``count`` of them, or as many as can be replayed.

    Args:
        runs: the query runs, so that its planned batch is in flight and has not failed: it counts if it reads rows.

    Raises:
        InvalidRequestError: no batch can be replayed.
        DataError: the log is damaged.
    """
    planned = planned_batches(checkpoint)
    last = checkpoint.position().planned_id
    if last is None or runs:
        last = next((batch_id for batch_id in reversed(planned) if _reads(checkpoint, batch_id)), None)
    found = [] if last is None else _unbroken(planned, last)
    first = _first_replayable(checkpoint, found)
    if not found or first == len(found):
        raise InvalidRequestError(
            "no batch of this query can be replayed: none has read rows yet, or they were cleaned up",
            query_name=name,
            next_step="Replay once the query has read rows; --query names another query, --deployment an older one.",
        )
    return tuple(found[max(first, len(found) - count) :])


def check_out(out: str, kept: Collection[str]) -> str:
    """The absolute path of the folder for the rows.

    Args:
        kept: the URIs of the home, of its places and mirrors: a replay never writes into them (Law 4).

    Raises:
        InvalidRequestError: it is no folder of this machine, or lies in one of them, or one of them in it.
        ConflictError: it is not empty.
    """
    plain = out.removeprefix("file://")
    if "://" in plain:
        raise InvalidRequestError(
            "a replay writes into a folder of this machine", out=out, next_step="Name a folder with --out."
        )
    folder = Path(local_folder(plain)).resolve()
    for uri in kept:
        place = plain_uri(uri)
        there = Path(place).resolve() if place.startswith("/") else None
        if there is not None and (folder.is_relative_to(there) or there.is_relative_to(folder)):
            raise InvalidRequestError(
                "a replay does not write to where streams, their snapshots or copies of them are kept",
                out=str(folder),
                kept_there=uri,
                next_step="Name a folder of its own with --out.",
            )
    try:
        is_taken = next(iter(folder.iterdir()), None) is not None
    except FileNotFoundError:
        is_taken = False
    except OSError as error:
        raise InvalidRequestError(
            "the folder for the rows cannot be used", out=str(folder), error=type(error).__name__,
            next_step="Name an empty or a new folder with --out.",
        ) from error  # fmt: skip
    if is_taken:
        raise ConflictError(
            "the folder for the rows is not empty",
            out=str(folder),
            next_step="Name an empty or a new folder with --out.",
        )
    return str(folder)


def _reads(checkpoint: Checkpoint, batch_id: int) -> bool:
    batch = batch_at(checkpoint, batch_id)
    return batch is not None and batch.entry.source_lines != batch.before


def _unbroken(planned: list[int], last: int) -> list[int]:
    """The batches up to this one without a gap between them."""
    known, first = set(planned), last
    while first - 1 in known:
        first -= 1
    return list(range(first, last + 1))


def _first_replayable(checkpoint: Checkpoint, batch_ids: list[int]) -> int:
    """The index of the oldest of these batches that can be replayed: Spark cleans up from the oldest on."""
    # Before batch 0 nothing has to be there: it is left out of the search.
    first = bisect.bisect_left(batch_ids, True, key=lambda each: each > 0 and can_fork_before(checkpoint, each))
    return 0 if first == 1 and batch_ids[0] == 0 else first


def _can_be_replayed(checkpoint: Checkpoint, planned: list[int]) -> str:
    found = planned[_first_replayable(checkpoint, planned) :]
    if not found:
        return "No batch of it can be replayed."
    return f"Batch {found[0]} can be replayed." if len(found) == 1 else (
        f"Batches {found[0]} to {found[-1]} can be replayed."
    )  # fmt: skip
