"""A stream that is being adopted has no other beginning, and what has another beginning is not adopted.

Both would make ``d-0001``: an adoption copies a checkpoint to where that of a deployment would lie. Each side writes
its own register first, and then reads the other's: of two at once at least one sees the other.
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
    """Create the register of a stream that nobody adopts.

    Raises:
        ConflictError: somebody does; there is no register of it.
        ObjectExistsError: there is one.
    """
    refuse_adopted(control)
    stored = control.create_register(register)
    try:
        refuse_adopted(control)
    except StreamStateError:
        with suppress(StreamStateError):  # a register that stays ends the adoption: it is met there
            control.home.delete(layout.register_key(control.stream_id), stored.version)
        raise
    return stored


def refuse_stream(control: StreamControl) -> None:
    """See that no stream has come to be under the name of an adoption that is not complete.

    Raises:
        ConflictError: one has; its checkpoints lie where those of the adoption would.
        MalformedMessageError: one has, and its register is gone.
    """
    if control.register_or_lost() is not None:
        raise ConflictError(
            "this home has a stream of this name already",
            stream_id=control.stream_id,
            home=control.home.uri,
            next_step="Adopt the query under another name; `--give-up` ends what was begun under this one.",
        )


def refuse_adopted(control: StreamControl) -> None:
    """See that a stream without a deployment is not about to come to be by an adoption, and that one which came to be
    by an adoption that was given up is not gone on with: its query has done so by itself (Law 14).

    Raises:
        ConflictError: it is.
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
