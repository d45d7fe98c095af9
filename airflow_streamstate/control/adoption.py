"""The register of a stream's adoption, changed by compare-and-swap only."""

from __future__ import annotations

from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.adoptions import Adoption


class AdoptionRegister:
    """Where a stream's adoption stands.

    Args:
        control: the stream.
    """

    def __init__(self, control: StreamControl) -> None:
        self._cells = control.cells
        self._stream_id = control.stream_id
        self._key = layout.adoption_key(control.stream_id)

    def read(self) -> Stored[Adoption] | None:
        """The adoption as it is now; None where the stream was never adopted."""
        return self._cells.read(self._key, Adoption, stream_id=self._stream_id)

    def create(self, adoption: Adoption) -> Stored[Adoption]:
        """Begin it; raises ObjectExistsError where another was first."""
        return Stored(adoption, self._cells.create(self._key, adoption))

    def replace(self, adoption: Adoption, version: str) -> Stored[Adoption]:
        """Change it if it still has ``version``; raises VersionConflictError otherwise."""
        return Stored(adoption, self._cells.replace(self._key, adoption, version))
