"""Retiring a stream: it is not to run any more; and, where that is asked for, nothing of it stays.

What is decided stands in the register before anything goes, and the register goes last: whoever comes in between finds
that, and a second call goes on where the first one was cut short.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.observe.observation import ALIVE
from airflow_streamstate.controller.rehearsal.rehearsals import Rehearsals
from airflow_streamstate.controller.retention.needs import needs_of
from airflow_streamstate.controller.under_upgrade import refuse_during_upgrade
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import TERMINAL_EVENTS
from airflow_streamstate.protocol.register import Retirement, StreamRegister
from airflow_streamstate.snapshot.placing import known_places
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.cleanup import delete_below, end_uploads
from airflow_streamstate.store.transfer import keys_below


@dataclass(frozen=True)
class Retired:
    """What became of a stream.

    Attributes:
        retirement: as it stands in the register, or stood there.
        objects: how many objects were removed now.
    """

    stream_id: str
    retirement: Retirement
    objects: int = 0

    def to_json(self) -> dict[str, object]:
        """``stream_id retired_at retired_by reason deleted objects``."""
        return {
            "stream_id": self.stream_id,
            "retired_at": format_time(self.retirement.retired_at),
            "retired_by": self.retirement.retired_by,
            "reason": self.retirement.reason,
            "deleted": self.retirement.is_deleting,
            "objects": self.objects,
        }


class Retiring:
    """Retires streams.

    Args:
        means: of the controller.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> Retired:
        """Mark a stream as one that is not to run any more; twice is once.

        Args:
            stream_id: the stream.
            reason: for people.
            deletes: remove everything of it, too: snapshots, pins, leases and all. There is no way back.

        Raises:
            StreamNotFoundError: there is none (any more).
            ConflictError: it runs, or nobody can say whether it does; or it is being deployed or upgraded.
            InvalidRequestError: it is to be deleted, and its checkpoints lie elsewhere than this home has them.
            UnavailableError: it is to be deleted, and a place of its snapshots does not answer.
        """
        control = self._home.control(stream_id)
        stored = control.register_or_lost()
        if stored is None:
            raise control.not_found()
        _ = self._home.checkpoints  # refused by name before anything is written
        if deletes and stored.value.deployment_id is not None:
            with suppress(DeploymentNotFoundError):  # by the call before, which was cut short
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
        needs_of(control, register, {}, None)  # a stream whose records cannot be read is not removed unseen
        seen = self._context.observer.look(control, stored, register.deployment_id)
        state = seen.state
        if state in ALIVE or state == "lost":
            what = "nobody can say whether this stream has ended" if state == "lost" else f"the stream is {state}"
            raise ConflictError(
                f"{what}: only one that has ended is retired",
                stream_id=control.stream_id,
                deployment_id=seen.deployment_id,
                state=state,
                next_step=f"`streamstate stop {control.stream_id}` ends it and keeps its state.",
            )
        still_runs = seen.launch_status is not None and seen.launch_status.state == "running"
        if not seen.is_closed and (still_runs or not isinstance(seen.terminal, TERMINAL_EVENTS)):
            self._context.endings.prove(control, seen)  # one that has said its last word is given a moment to be gone

    def _refuse_lost_places(self, control: StreamControl) -> None:
        """See that each place answers, before there is no way back: of a stream that is being deleted nothing is
        deployed, and what lies at a place that is gone for good cannot be deleted.

        Raises:
            UnavailableError: one does not.
        """
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
        """Everything but the register, then that."""
        stream_id = control.stream_id
        home, checkpoints = self._home.home, self._home.checkpoints
        for rehearsal_id in control.rehearsal_ids():
            Rehearsals(self._context).give_up(stream_id, rehearsal_id)
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
        for place in places:  # before the name is free: whoever has it then may want the same place
            place.delete(layout.place_record_key(stream_id))
        home.delete(register_key)
        delete_below(home, stream_id)
        return count + elsewhere

    def _delete_elsewhere(self, control: StreamControl) -> tuple[list[Store], int]:
        """What lies at other places; where one does not answer, everything stays on record, and the next call goes on.

        Raises:
            UnavailableError: a place does not answer.
        """
        count, folder = 0, layout.snapshots_folder(control.stream_id)
        places = []
        for uri in known_places(control):
            with suppress(ConflictError):  # it is another home's
                store = self._home.places.need_own(control, uri)
                count += len(keys_below(store, f"{folder}/"))
                delete_below(store, folder)
                places.append(store)
        return places, count
