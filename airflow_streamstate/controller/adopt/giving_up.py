"""Giving an adoption up: its barriers are taken back, and the query may be started again as it was.

Only as long as nothing of ours has run a batch of it (Law 14). A stream that has come to be by then is retired.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.entries import BarrierMark
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.adopt.foreign import OpenPlace, opener, place_of
from airflow_streamstate.controller.adopt.holding import Hold, hold_to_end
from airflow_streamstate.controller.adopt.taking import (
    ADOPTED_ID,
    failed_to_take_back,
    put_back,
    remove_snapshots,
)
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.observation import ALIVE
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentNotFoundError,
    InvalidRequestError,
    StreamNotFoundError,
    StreamStateError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.adoptions import Adoption
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.register import Retirement, StreamRegister
from airflow_streamstate.store.local import LocalStore


@dataclass(frozen=True)
class GivenUp:
    """An adoption that is over.

    Attributes:
        checkpoints: where the barrier was taken back, by query; without those that somebody has removed.
        missing: where no checkpoint lies any more.
        is_retired: a stream had come to be, and is retired.
    """

    stream_id: str
    checkpoints: dict[str, str]
    missing: dict[str, str]
    is_retired: bool

    def to_json(self) -> dict[str, object]:
        """As a plain JSON object."""
        return {
            "stream_id": self.stream_id,
            "given_up": self.checkpoints,
            "missing": self.missing,
            "retired": self.is_retired,
        }


def give_up(context: ControllerContext, stream_id: str, open_place: OpenPlace | None = None) -> GivenUp:
    """Give the adoption of a stream up, so that its query may be started again as it was; twice is once.

    Args:
        means: of the controller.
        stream_id: the stream.
        open_place: opens a folder that checkpoints lie in; None for whatever a URI names.

    Raises:
        StreamNotFoundError: it was never adopted.
        ConflictError: another works on it; or a driver of ours runs, or has run its queries; or a barrier cannot be
            taken back.
    """
    control = context.home.control(stream_id)
    hold = hold_to_end(context, control)
    if hold is None:
        raise StreamNotFoundError(
            "nobody has begun to adopt this stream",
            stream_id=stream_id,
            home=context.home.home.uri,
            next_step="Check the stream's name, and the home.",
        )
    try:
        adoption, is_retired = hold.adoption, False
        if adoption.status == "taken":
            is_retired = _retire(context, control, adoption)
        # Of one that was given up before, too: who slept meanwhile may have put his barrier since.
        barriers, failures = _barriers(hold, control, open_place or opener(context.home))
        try:
            failures += map(str, failed_to_take_back(barriers.values(), hold.confirm))
            _refuse_left(adoption, failures)
            if adoption.status == "given_up":
                stored = control.register()
                is_retired = stored is not None and stored.value.retirement is not None
            else:
                if adoption.status == "taken":
                    is_retired = _retire(context, control, adoption)  # one that has come to be since the first look
                remove_snapshots(context.home, hold, control, barriers.values())
                # Last: under another adoption's id nobody would take them back any more. What snapshot a stream has of
                # it says that it is never gone on with.
                snapshot_id = adoption.snapshot_id if is_retired else ""
                hold.change(status="given_up", snapshot_id=snapshot_id)
        except ConflictError:
            put_back(hold, control, barriers.values())
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


def _barriers(hold: Hold, control: StreamControl, open_place: OpenPlace) -> tuple[dict[str, OutsideBarrier], list[str]]:
    """Of each query whose checkpoint is still there; and why one cannot be looked for."""
    adoption = hold.adoption
    failures: list[str] = []
    barriers = {}
    for name, uri in adoption.checkpoints.items():
        mark = BarrierMark(
            "fence", adoption.stream_id, ADOPTED_ID, adoption.take, adoption.adoption_id, adoption.write_id
        )
        try:
            # Without a look at anything else: what is damaged there, or was never to be adopted, is not in the way.
            checkpoint = place_of(uri, open_place)
            if not _is_gone(checkpoint, adoption, control):
                barriers[name] = OutsideBarrier(checkpoint, mark)
        except StreamStateError as failure:
            failures.append(str(failure))
    return barriers, failures


def _refuse_left(adoption: Adoption, failures: list[str]) -> None:
    if failures:
        raise ConflictError(
            "a barrier of this adoption could not be taken back",
            stream_id=adoption.stream_id,
            reasons=failures,
            next_step="Mend that, and give it up again; a stream whose old checkpoint is gone is retired instead.",
        )


def _is_gone(checkpoint: Checkpoint, adoption: Adoption, control: StreamControl) -> bool:
    """Whether there is nothing to take back, because somebody has removed that checkpoint.

    Raises:
        InvalidRequestError: somebody has, and what was copied of it may be all that is left of its state (Law 16); or
            it lies on another machine, or on a disk that is not mounted.
    """
    if checkpoint.exists() or checkpoint.offset_ids():
        return False
    if adoption.status == "given_up":
        return True
    if isinstance(checkpoint.store, LocalStore) and not checkpoint.store.root.is_dir():
        raise InvalidRequestError(
            "this machine has no such folder",
            folder=str(checkpoint.store.root),
            next_step="Give it up where it is; if it was removed for good, make an empty one.",
        )
    if adoption.status == "taken" or control.snapshot_ids():
        raise InvalidRequestError(
            "no checkpoint lies there any more, and the stream has the only copy",
            checkpoint=f"{checkpoint.store.uri}/{checkpoint.prefix}",
        )
    return True


def _retire(context: ControllerContext, control: StreamControl, adoption: Adoption) -> bool:
    """Where a stream has come to be, nobody may deploy it from the snapshot of a query that runs on."""
    stored = control.register()
    if stored is None:
        return False
    _refuse_begun(context, control, stored, adoption)
    if stored.value.retirement is None:
        retirement = Retirement(context.clock.now(), context.requested_by, "its adoption was given up")
        # Against the register that was looked at: a deploy since then has moved it.
        context.update_register(control, lambda register: replace(register, retirement=retirement), since=stored)
    return True


def _refuse_begun(
    context: ControllerContext, control: StreamControl, stored: Stored[StreamRegister], adoption: Adoption
) -> None:
    for deployment_id in control.deployment_ids():
        said = [entry.event for entry in control.journal(deployment_id).events()]
        if any(isinstance(event, QueryStarted) for event in said) or _has_run(
            context, control, deployment_id, adoption
        ):
            raise ConflictError(
                "this stream has gone on with the adopted query: started as it was, that would run the same batches",
                stream_id=control.stream_id,
                deployment_id=deployment_id,
                next_step="Deploy or roll back the stream instead.",
            )
    if stored.value.deployment_id is None:
        return
    seen = context.observer.look(control, stored, stored.value.deployment_id)
    state = seen.state
    if state in (*ALIVE, "lost"):
        raise ConflictError(
            f"a driver of this stream is {state}, and may start the adopted query at any moment",
            stream_id=control.stream_id,
            deployment_id=seen.deployment_id,
            next_step=f"`streamstate kill {control.stream_id}` ends it; then give the adoption up.",
        )


def _has_run(context: ControllerContext, control: StreamControl, deployment_id: str, adoption: Adoption) -> bool:
    """Whether its log says so: a driver that was killed may not have come to say that a query was started."""
    try:
        spec = control.spec(deployment_id)
    except DeploymentNotFoundError:
        return False
    context.home.check_place(spec)
    for name, query in control.need_manifest(adoption.snapshot_id).queries.items():
        folder = layout.checkpoint_folder(control.stream_id, deployment_id, name)
        checkpoint = Checkpoint(context.home.checkpoints, folder)
        if not checkpoint.exists():
            continue
        found = checkpoint.position()
        if found.batch_id != query.position.batch_id or found.planned_id not in (None, query.position.planned_batch_id):
            return True
    return False
