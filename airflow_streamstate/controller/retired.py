"""Retired streams start only with ``--revive``."""

from __future__ import annotations

from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.register import StreamRegister


def refuse_retired(register: StreamRegister | None, *, revive: bool = False) -> None:
    """Refuse to start a retired stream.

    Args:
        register: None for a stream that was never deployed.
        revive: start a retired stream all the same.

    Raises:
        ConflictError: the stream is retired and not revived, or is being deleted.
    """
    retirement = None if register is None else register.retirement
    if register is None or retirement is None or (revive and not retirement.is_deleting):
        return
    facts = {"retired_by": retirement.retired_by, "retired_at": retirement.retired_at, "reason": retirement.reason}
    if retirement.is_deleting:
        raise ConflictError(
            "this stream is being deleted",
            stream_id=register.stream_id,
            **facts,
            next_step=f"`streamstate retire {register.stream_id} --delete` finishes that; then its name is free.",
        )
    raise ConflictError(
        "this stream is retired",
        stream_id=register.stream_id,
        **facts,
        next_step=f"`streamstate deploy {register.stream_id} --revive` deploys it all the same.",
    )
