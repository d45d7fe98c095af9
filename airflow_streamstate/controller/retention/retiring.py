"""Retire a stream: it starts only with ``--revive`` from now on; or delete it entirely.

The register records the decision first and is deleted last, so that any controller in between finds it, and a second
call finishes one that was cut short.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.controller.retention.needs import needs_of
from airflow_streamstate.controller.scratch.run import ScratchRuns
from airflow_streamstate.controller.under_upgrade import refuse_during_upgrade
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import TERMINAL_EVENTS
from airflow_streamstate.protocol.register import Retirement, StreamRegister
from airflow_streamstate.protocol.views import View
from airflow_streamstate.snapshot.placing import known_places
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.cleanup import delete_below, end_uploads
from airflow_streamstate.store.transfer import keys_below


@dataclass(frozen=True)
class Retired(View):
    """A retired stream; ``objects``: how many objects this call removed."""

    form: ClassVar[str] = (
        "stream_id retired_at=retirement.retired_at retired_by=retirement.retired_by reason=retirement.reason"
        " deleted=retirement.is_deleting objects"
    )

    stream_id: str
    retirement: Retirement
    objects: int = 0


class Retiring:
    """Retires streams."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> Retired:
        """Mark a stream as retired; idempotent.

        Args:
            deletes: also delete everything of it, pinned snapshots included. This cannot be undone.

        Raises:
            StreamNotFoundError: there is no such stream (any more).
            ConflictError: it runs, or may run; or it is being deployed or upgraded.
            InvalidRequestError: with ``deletes``, where its checkpoints lie in another store than this home's.
            UnavailableError: with ``deletes``, where a store of its snapshots does not answer.
        """
        control = self._home.control(stream_id)
        stored = control.register_or_lost()
        if stored is None:
            raise control.not_found()
        _ = self._home.checkpoints  # refused by name before anything is written
        if deletes and stored.value.deployment_id is not None:
            with suppress(DeploymentNotFoundError):  # deleted by an earlier call that was cut short
                self._home.check_place(control.spec(stored.value.deployment_id))
        retirement = stored.value.retirement
        if retirement is None or (deletes and not retirement.is_deleting):
            self._refuse_what_runs(control, stored)
            if deletes:
                self._refuse_lost_places(control)
            if retirement is None:
                retirement = Retirement(self._context.clock.now(), self._context.requested_by, reason)
            retirement = replace(retirement, is_deleting=deletes)
            marked = retirement
            self._context.update_register(
                control, lambda register: replace(register, retirement=marked, intent=None), since=stored
            )
        objects = self._delete(control) if retirement.is_deleting else 0
        return Retired(stream_id, retirement, objects)

    def _refuse_what_runs(self, control: StreamControl, stored: Stored[StreamRegister]) -> None:
        register = stored.value
        refuse_during_upgrade(control, register, None)
        refused = refuse_other_intent(register, "", self._context.clock.now())
        if refused is not None:
            raise refused.error
        if register.deployment_id is None:
            return
        needs_of(control, register, {}, None)  # raises where the records cannot be read
        seen = self._context.observer.look(control, stored, register.deployment_id)
        state = seen.state
        if state in NOT_ENDED or state == "lost":
            what = "it is unknown whether this stream has ended" if state == "lost" else f"the stream is {state}"
            raise ConflictError(
                f"{what}: only a stream that has ended can be retired",
                stream_id=control.stream_id,
                deployment_id=seen.deployment_id,
                state=state,
                next_step=f"`streamstate stop {control.stream_id}` ends it and keeps its state."
                if state != "silent"
                else f"`streamstate kill {control.stream_id}` ends its driver.",
            )
        still_runs = seen.launch_status is not None and seen.launch_status.state == "running"
        if not seen.is_closed and (still_runs or not isinstance(seen.terminal, TERMINAL_EVENTS)):
            self._context.endings.prove(control, seen)

    def _refuse_lost_places(self, control: StreamControl) -> None:
        """Raise UnavailableError unless each store of snapshots answers: a stream marked as being deleted cannot be
        deployed, and snapshots in a lost store could never be deleted."""
        for uri in known_places(control):
            try:
                self._home.places.need(control.stream_id, uri)
            except UnavailableError as error:
                raise UnavailableError(
                    "snapshots of this stream lie at a place that does not answer: nothing was deleted",
                    stream_id=control.stream_id,
                    place=uri,
                    reason=str(error),
                    next_step="Mount or reach it again; where it is lost for good, retire without --delete.",
                ) from error

    def _delete(self, control: StreamControl) -> int:
        """Delete everything but the register, then the register."""
        stream_id = control.stream_id
        home, checkpoints = self._home.home, self._home.checkpoints
        for run_id in control.scratch_ids():
            ScratchRuns(self._context).give_up(stream_id, run_id)
        places, elsewhere = self._delete_elsewhere(control)
        register_key = layout.register_key(stream_id)
        stores = dict.fromkeys((checkpoints, home))
        count = sum(len(keys_below(store, f"{stream_id}/")) for store in stores)
        name = register_key.rpartition("/")[2]
        for store in stores:
            delete_below(store, stream_id, but=(name,))
        for store in dict.fromkeys((*stores, *places)):  # no later prune of this stream would
            end_uploads(store, stream_id, self._context.clock.now())
        self._home.remove_stream(stream_id, but=name)
        for place in places:  # before the name is free: the next stream of the name may use the same place
            place.delete(layout.place_record_key(stream_id))
        home.delete(register_key)
        delete_below(home, stream_id)
        return count + elsewhere

    def _delete_elsewhere(self, control: StreamControl) -> tuple[list[Store], int]:
        """Delete the snapshots in other stores. Raises UnavailableError where one does not answer; the next call goes
        on."""
        count, folder = 0, layout.snapshots_folder(control.stream_id)
        places = []
        for uri in known_places(control):
            with suppress(ConflictError):  # the place is another home's
                store = self._home.places.need_own(control, uri)
                count += len(keys_below(store, f"{folder}/"))
                delete_below(store, folder)
                places.append(store)
        return places, count
