"""The register of a stream's adoption."""

from __future__ import annotations

from airflow_streamstate.control.objects import Register
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.adoptions import Adoption


def adoption_register(control: StreamControl) -> Register[Adoption]:
    """The register of a stream's adoption; absent where the stream was never adopted."""

    def absent() -> Adoption:
        raise adoption_lost(control.stream_id)

    return Register(
        control.cells, layout.adoption_key(control.stream_id), Adoption, absent, stream_id=control.stream_id
    )


def adoption_lost(stream_id: str) -> ConflictError:
    """The error of a controller whose adoption lease another controller took."""
    return ConflictError(
        "another controller has gone on with this adoption",
        stream_id=stream_id,
        next_step=f"`streamstate status {stream_id}` shows what became of it.",
    )
