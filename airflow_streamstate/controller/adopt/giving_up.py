"""Giving an adoption up: takes its barriers back, so that the query can be started again as before.

Possible until a driver of the stream has run a batch (Law 14). A stream that was created by then is retired.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.controller.adopt.foreign import OpenPlace, place_of
from airflow_streamstate.controller.adopt.holding import Hold, hold_to_end
from airflow_streamstate.controller.adopt.taking import (
    failed_to_take_back,
    outside_barrier,
    put_back,
    remove_snapshots,
)
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentNotFoundError,
    InvalidRequestError,
    StreamNotFoundError,
    StreamStateError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.register import Retirement, StreamRegister
from airflow_streamstate.protocol.views import View
from airflow_streamstate.store.local import LocalStore


@dataclass(frozen=True)
class GivenUp(View):
    """An adoption that was given up.

    Attributes:
        checkpoints: by query, where the barrier was taken back.
        missing: by query, where the checkpoint was removed meanwhile.
        is_retired: a stream had been created, and is retired.
    """

    form: ClassVar[str] = "stream_id given_up=checkpoints missing retired=is_retired"

    stream_id: str
    checkpoints: dict[str, str]
    missing: dict[str, str]
    is_retired: bool


def give_up(context: ControllerContext, stream_id: str, open_place: OpenPlace) -> GivenUp:
    """Give the adoption of a stream up, so that its query can be started again as before. Idempotent.

    Raises:
        StreamNotFoundError: the stream was never adopted.
        ConflictError: another controller holds the adoption; a driver of the stream runs or has run its queries; or a
            barrier cannot be taken back.
        InvalidRequestError: its record names a checkpoint at a place that is not allowed for the home.
    """
    control = context.home.control(stream_id)
    hold = hold_to_end(context, control)
    if hold is None:
        raise StreamNotFoundError(
            "this stream has no adoption",
            stream_id=stream_id,
            home=context.home.home.uri,
            next_step="Check the stream's name, and the home.",
        )
    try:
        adoption, is_retired = hold.adoption, False
        for uri in adoption.checkpoints.values():
            # A barrier is removed there, or put back: by the record alone, which others may have written.
            context.home.config.allowed.check_store(uri, stream_id=stream_id)
        if adoption.status == "taken":
            is_retired = _retire(hold)
        # Also for an adoption that was given up before: a controller that slept may have put its barrier since.
        barriers, failures = _barriers(hold, open_place)
        try:
            failures += map(str, failed_to_take_back(barriers.values(), hold.confirm))
            if failures:
                raise ConflictError(
                    "a barrier of this adoption could not be taken back",
                    stream_id=stream_id,
                    reasons=failures,
                    next_step="Repair that, and give it up again; a stream whose old checkpoint is gone is retired"
                    " instead.",
                )
            if adoption.status == "given_up":
                stored = control.register()
                is_retired = stored is not None and stored.value.retirement is not None
            else:
                if adoption.status == "taken":
                    is_retired = _retire(hold)  # a stream created since the first look
                remove_snapshots(hold, barriers.values())
                # Last: under another adoption's id no controller would take the barriers back. With a snapshot id the
                # adoption has a retired stream, and is never continued.
                hold.change(status="given_up", snapshot_id=adoption.snapshot_id if is_retired else "")
        except ConflictError:
            put_back(hold, barriers.values())
            raise
    finally:
        with suppress(StreamStateError):
            hold.release()
    places = adoption.checkpoints.items()
    return GivenUp(
        stream_id,
        {name: uri for name, uri in places if name in barriers},
        {name: uri for name, uri in places if name not in barriers},
        is_retired,
    )


def _barriers(hold: Hold, open_place: OpenPlace) -> tuple[dict[str, OutsideBarrier], list[str]]:
    """The barrier of each query whose checkpoint is still there, and the reasons where that is unknown."""
    adoption = hold.adoption
    failures: list[str] = []
    barriers = {}
    for name, uri in adoption.checkpoints.items():
        try:
            checkpoint = place_of(uri, open_place)  # unchecked: a damaged checkpoint is no obstacle here
            if not _is_gone(checkpoint, hold):
                barriers[name] = outside_barrier(adoption, checkpoint, adoption.write_id)
        except StreamStateError as failure:
            failures.append(str(failure))
    return barriers, failures


def _is_gone(checkpoint: Checkpoint, hold: Hold) -> bool:
    """Whether the checkpoint was removed, so that there is nothing to take back.

    Raises:
        InvalidRequestError: it was, and its copy may be all that is left of its state (Law 16); or its folder is not on
            this machine, or not mounted.
    """
    if checkpoint.exists() or checkpoint.offset_ids():
        return False
    if hold.adoption.status == "given_up":
        return True
    if isinstance(checkpoint.store, LocalStore) and not checkpoint.store.root.is_dir():
        raise InvalidRequestError(
            "this machine has no such folder",
            folder=str(checkpoint.store.root),
            next_step="Give the adoption up on the machine that has it; if it was removed for good, create it empty.",
        )
    if hold.adoption.status == "taken" or hold.control.snapshot_ids():
        raise InvalidRequestError(
            "the checkpoint is gone, and the stream has the only copy",
            checkpoint=f"{checkpoint.store.uri}/{checkpoint.prefix}",
        )
    return True


def _retire(hold: Hold) -> bool:
    """Retire a stream that was created: it must not be deployed from the snapshot of a query that runs on."""
    context, stored = hold.context, hold.control.register()
    if stored is None:
        return False
    _refuse_begun(hold, stored)
    if stored.value.retirement is None:
        retirement = Retirement(context.clock.now(), context.requested_by, "its adoption was given up")
        # Fails where a deploy has moved the register since the check.
        context.update_register(hold.control, lambda register: replace(register, retirement=retirement), since=stored)
    return True


def _refuse_begun(hold: Hold, stored: Stored[StreamRegister]) -> None:
    control = hold.control
    for deployment_id in control.deployment_ids():
        said = [entry.event for entry in control.journal(deployment_id).events()]
        if any(isinstance(event, QueryStarted) for event in said) or _has_run(hold, deployment_id):
            raise ConflictError(
                "this stream has gone on with the adopted query: started as it was, that would run the same batches",
                stream_id=control.stream_id,
                deployment_id=deployment_id,
                next_step="Deploy or roll back the stream instead.",
            )
    if stored.value.deployment_id is None:
        return
    seen = hold.context.observer.look(control, stored, stored.value.deployment_id)
    state = seen.state
    if state in (*NOT_ENDED, "lost"):
        raise ConflictError(
            f"a driver of this stream is {state}, and may start the adopted query at any moment",
            stream_id=control.stream_id,
            deployment_id=seen.deployment_id,
            next_step=f"`streamstate kill {control.stream_id}` ends it; then give the adoption up.",
        )


def _has_run(hold: Hold, deployment_id: str) -> bool:
    """Whether a log of the deployment has moved: a driver may have been killed before it reported a query's start."""
    home, control = hold.context.home, hold.control
    try:
        spec = control.spec(deployment_id)
    except DeploymentNotFoundError:
        return False
    home.check_place(spec)
    for name, query in control.need_manifest(hold.adoption.snapshot_id).queries.items():
        folder = layout.checkpoint_folder(control.stream_id, deployment_id, name)
        checkpoint = Checkpoint(home.checkpoints, folder)
        if not checkpoint.exists():
            continue
        found = checkpoint.position()
        if found.batch_id != query.position.batch_id or found.planned_id not in (None, query.position.planned_batch_id):
            return True
    return False
