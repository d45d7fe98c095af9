"""A stream begins by a deploy or by an adoption, never by both: each would make the checkpoints of ``d-0001``.

Each side writes its own register first and then reads the other's, so that of two at once at least one sees the other.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_streamstate.control.adoption import adoption_register
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.register import StreamRegister


def create_unadopted(control: StreamControl, register: StreamRegister) -> Stored[StreamRegister]:
    """Create the register of a stream that is not being adopted.

    Raises:
        ConflictError: the stream is being adopted; no register is left of it.
        ObjectExistsError: the stream has a register.
    """
    refuse_adopted(control)
    stored = control.create_register(register)
    try:
        refuse_adopted(control)
    except StreamStateError:
        with suppress(StreamStateError):  # the adoption finds a register that stays, and ends
            control.home.delete(layout.register_key(control.stream_id), stored.version)
        raise
    return stored


def refuse_stream(control: StreamControl) -> None:
    """Refuse an adoption under the name of an existing stream.

    Raises:
        ConflictError: the stream exists; its checkpoints lie where those of the adoption would.
        MalformedMessageError: the stream exists, and its register is gone.
    """
    if control.register_or_lost() is not None:
        raise ConflictError(
            "this home already has a stream of this name",
            stream_id=control.stream_id,
            home=control.home.uri,
            next_step="Adopt the query under another name; `--give-up` ends the adoption begun under this one.",
        )


def refuse_adopted(control: StreamControl) -> None:
    """Refuse a stream that is being adopted, and one that came from an adoption that was given up: its query went on
    by itself (Law 14).

    Raises:
        ConflictError: the stream is one of these.
    """
    stored = adoption_register(control).read()
    if stored is None:
        return
    register = control.register()
    has_deployment = register is not None and register.value.deployment_id is not None
    if stored.value.status == "given_up":
        if has_deployment and stored.value.snapshot_id:
            raise ConflictError(
                "the adoption of this stream was given up: the query goes on by itself, over the same batches",
                stream_id=control.stream_id,
                checkpoints=dict(stored.value.checkpoints),
                next_step="Adopt the query under another name; `streamstate retire --delete` frees this one.",
            )
        return
    if not has_deployment:
        raise ConflictError(
            "a query is being adopted as this stream",
            stream_id=control.stream_id,
            checkpoints=dict(stored.value.checkpoints),
            requested_by=stored.value.requested_by,
            begun_at=stored.value.begun_at,
            next_step=f"Finish it with the same `streamstate adopt`; or `streamstate adopt {control.stream_id}"
            " --give-up` first.",
        )
