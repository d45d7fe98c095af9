"""Giving an adoption up: its barriers are taken back, and the query may be started again as it was.

Only as long as nothing of ours has run a batch of it (Law 14). A stream that has come to be by then is retired.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_streamstate.checkpoint.entries import BarrierMark
from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, StreamNotFoundError
from airflow_streamstate.lifecycle.adopting.foreign import OpenPlace, open_foreign, opener
from airflow_streamstate.lifecycle.adopting.holding import hold_to_end
from airflow_streamstate.lifecycle.adopting.taking import ADOPTED_ID
from airflow_streamstate.lifecycle.means import Means
from airflow_streamstate.lifecycle.state import ALIVE, decide_state
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.register import Retirement


@dataclass(frozen=True)
class GivenUp:
    """An adoption that is over.

    Attributes:
        checkpoints: where the barrier was taken back, by query.
        is_retired: a stream had come to be, and is retired.
    """

    stream_id: str
    checkpoints: dict[str, str]
    is_retired: bool

    def to_json(self) -> dict[str, object]:
        """As a plain JSON object."""
        return {"stream_id": self.stream_id, "given_up": self.checkpoints, "retired": self.is_retired}


def give_up(means: Means, stream_id: str, open_place: OpenPlace | None = None) -> GivenUp:
    """Give the adoption of a stream up, so that its query may be started again as it was; twice is once.

    Args:
        means: of the controller.
        stream_id: the stream.
        open_place: opens a folder that checkpoints lie in; None for whatever a URI names.

    Raises:
        StreamNotFoundError: it was never adopted.
        ConflictError: another works on it; or a driver of ours runs, or has run its queries.
    """
    control = means.home.control(stream_id)
    hold = hold_to_end(means, control)
    if hold is None:
        raise StreamNotFoundError(
            "nobody has begun to adopt this stream",
            stream_id=stream_id,
            home=means.home.home.uri,
            next_step="Check the stream's name, and the home.",
        )
    try:
        _refuse_begun(means, control)
        is_retired = _retire(means, control)
        hold.change(status="given_up")
        adoption = hold.adoption
        for uri in adoption.checkpoints.values():
            checkpoint = open_foreign(means.home, uri, open_place or opener(means.home))
            mark = BarrierMark("fence", stream_id, ADOPTED_ID, adoption.take, adoption.adoption_id, adoption.write_id)
            OutsideBarrier(checkpoint, mark).take_back()
    finally:
        hold.release()
    return GivenUp(stream_id, dict(adoption.checkpoints), is_retired)


def _refuse_begun(means: Means, control: StreamControl) -> None:
    if control.register() is None:
        return
    for deployment_id in control.deployment_ids():
        said = [entry.event for entry in control.journal(deployment_id).events()]
        if any(isinstance(event, QueryStarted) for event in said):
            raise ConflictError(
                "this stream has gone on with the adopted query: started as it was, that would run the same batches",
                stream_id=control.stream_id,
                deployment_id=deployment_id,
                next_step="Deploy or roll back the stream instead.",
            )
    seen = means.observer.observe(control.stream_id)
    state = decide_state(seen, seen.observed_at)
    if state in (*ALIVE, "lost"):
        raise ConflictError(
            f"a driver of this stream is {state}, and may start the adopted query at any moment",
            stream_id=control.stream_id,
            deployment_id=seen.deployment_id,
            next_step=f"`streamstate kill {control.stream_id}` ends it; then give the adoption up.",
        )


def _retire(means: Means, control: StreamControl) -> bool:
    """Where a stream has come to be, nobody may deploy it from the snapshot of a query that runs on."""
    stored = control.register()
    if stored is None:
        return False
    if stored.value.retirement is None:
        retirement = Retirement(means.clock.now(), means.requested_by, "its adoption was given up")
        means.replace_register(control, stored, retirement=retirement)
    return True
