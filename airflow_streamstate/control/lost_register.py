"""A stream whose register is gone while its deployments are there: how it is recognised, and how it is restored.

No code restores it by itself: what it named may run, and only it said which of two deployments was current.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_streamstate.errors import DataError, MalformedMessageError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.adoptions import Adoption
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.ids import fencing_token_of, is_snapshot_of
from airflow_streamstate.protocol.register import StreamRegister

if TYPE_CHECKING:
    from airflow_streamstate.control.stream import StreamControl


def lost_register(control: StreamControl) -> MalformedMessageError | None:
    """The error for it, with a register that can be written by hand; None where no deployment was recorded.

    A deployment is recorded after the register (apart from an adoption's) and deleted before it.

    Args:
        control: a stream that was just read without a register.
    """
    recorded = [one for one in control.deployment_ids() if _is_there(control, layout.spec_key(control.stream_id, one))]
    is_adopting = len(recorded) == 1 and _is_of_adoption(control, recorded[0])
    if not recorded or is_adopting or _is_there(control, layout.register_key(control.stream_id)):
        return None  # the last: it was created meanwhile
    current, attempt = _newest_that_began(control, recorded)
    register = StreamRegister(
        stream_id=control.stream_id,
        fencing_token=fencing_token_of(recorded[-1]),
        deployment_id=current,
        attempt=attempt,
        attempt_mode="run",
        intent=None,
        write_id=control.clock.new_uuid(),
        updated_at=control.clock.now(),
        updated_by="written by hand",
    )
    key = layout.register_key(control.stream_id)
    return MalformedMessageError(
        "the register of this stream is gone, and its deployments are there",
        stream_id=control.stream_id,
        key=key,
        home=control.home.uri,
        newest_deployment_id=recorded[-1],
        register=to_bytes(register).decode(),
        next_step=f"Restore {key} from a copy of the home that names {current} attempt {attempt}; or where there"
        " is a mirror, `streamstate home restore --from MIRROR --stream"
        f" {control.stream_id}`. Without either: write to {key} what `streamstate status {control.stream_id}` shows as"
        " register; that the stream was retired, or an upgrade under way, is not in it.",
    )


def _is_there(control: StreamControl, key: str) -> bool:
    return control.home.head(key) is not None


def _is_of_adoption(control: StreamControl, deployment_id: str) -> bool:
    """Whether the first deployment of a stream may be that of an adoption.

    A late controller may have recorded it after the adoption was given up. Only an adoption's deployment starts from a
    snapshot of itself.
    """
    try:
        stored = control.cells.read(layout.adoption_key(control.stream_id), Adoption, stream_id=control.stream_id)
        if stored is None or stored.value.status != "given_up":
            return stored is not None
        start = control.spec(deployment_id).start
    except DataError:
        return True
    return start.snapshot_id is not None and is_snapshot_of(start.snapshot_id, deployment_id)


def _newest_that_began(control: StreamControl, recorded: list[str]) -> tuple[str, int]:
    """The newest deployment with a claim or an event, with its last attempt; else the newest one."""
    for deployment_id in reversed(recorded):
        attempt = max((*_claimed(control, deployment_id), *_attempts_in_events(control, deployment_id)), default=0)
        if attempt:
            return deployment_id, attempt
    return recorded[-1], 1


def _claimed(control: StreamControl, deployment_id: str) -> list[int]:
    prefix = layout.claim_key(control.stream_id, deployment_id, 1).rpartition("/")[0]
    numbers = (layout.number_of(info.key) for info in control.home.list_objects(f"{prefix}/"))
    return [number for number in numbers if number is not None]


def _attempts_in_events(control: StreamControl, deployment_id: str) -> list[int]:
    try:
        entries = list(control.journal(deployment_id).events())
    except DataError:
        return []
    return [entry.event.attempt for entry in entries if entry.event is not None]
