"""The writes of a store on a server, each sent until its outcome is known: the same rules for every server.

A lost reply must not look like a conflict, so a write whose outcome is unknown is read back before anything else
(Law 8). Every put carries an id of its own in the object's metadata, by which it is known when it is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    ConflictError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.store.answers import RequestFailure
from airflow_streamstate.store.interface import StoredObject
from airflow_streamstate.store.tries import until_known

PUT, DELETE = "put", "delete"


@dataclass(frozen=True)
class Writes:
    """The writes of one store.

    Attributes:
        clock: for ids and pauses.
        get: the object, and the id of the put that wrote it ("" where another program did); None where there is none.
        report: the package's error for a failure: of PUT or DELETE, the key, and whether a try may have landed.
    """

    clock: Clock
    get: Callable[[str], tuple[StoredObject, str] | None]
    report: Callable[[str, str, RequestFailure, bool], StreamStateError]

    def create(self, key: str, body: bytes, send: Callable[[str], str]) -> str:
        """``Store.create``; ``send`` puts under the condition that nothing is there, with the id that it is given."""
        taken = ObjectExistsError("an object is there already", key=key)

        def look(stored: StoredObject | None, _doubtful: bool) -> None:
            if stored is not None:
                raise taken

        return self._put(key, body, send, look, taken)

    def replace(self, key: str, body: bytes, version: str, send: Callable[[str], str]) -> str:
        """``Store.replace``; ``send`` puts under the condition that this version is there."""
        changed = VersionConflictError("the object has another version, or is gone", key=key)
        overtaken = OutcomeUnknownError("others wrote or removed it around a try whose reply was lost", key=key)

        def look(stored: StoredObject | None, doubtful: bool) -> None:
            if stored is None or stored.version != version:
                # A try may have landed and been written over since: no word of "not written" (Law 8).
                raise overtaken if doubtful else changed

        return self._put(key, body, send, look, changed)

    def put(self, key: str, body: bytes, send: Callable[[str], str]) -> str:
        """``Store.put``; ``send`` puts without a condition."""
        others = ConflictError("others keep writing this object", key=key, next_step="Try again in a moment.")
        return self._put(key, body, send, lambda _stored, _doubtful: None, others)

    def delete(self, key: str, version: str | None, send: Callable[[], str]) -> None:
        """``Store.delete``; ``send`` deletes, under the condition of this version where there is one."""
        changed = VersionConflictError("the object has another version", key=key)

        def read_back(doubtful: bool) -> str | None:
            if version is None and not doubtful:
                return None
            found = self.get(key)
            if found is None:
                return ""
            if version is None or found[0].version == version:
                return None
            raise changed

        self._until_known(DELETE, key, send, read_back, changed)

    def _put(
        self,
        key: str,
        body: bytes,
        send: Callable[[str], str],
        look: Callable[[StoredObject | None, bool], None],
        conflict: ConflictError,
    ) -> str:
        """One put, with an id of its own, so that it is told from another's put of equal bytes.

        Args:
            look: raises where what is there, and is not of this put, forbids another try; told whether one may have
                landed.
        """
        write_id = self.clock.new_uuid()

        def read_back(doubtful: bool) -> str | None:
            found = self.get(key)
            if found is not None and doubtful and found[1] == write_id and found[0].body == body:
                return found[0].version
            look(None if found is None else found[0], doubtful)
            return None

        return self._until_known(PUT, key, lambda: send(write_id), read_back, conflict)

    def _until_known(
        self,
        act: str,
        key: str,
        send: Callable[[], str],
        read_back: Callable[[bool], str | None],
        conflict: ConflictError,
    ) -> str:
        def report(failure: RequestFailure, doubtful: bool) -> StreamStateError:
            return self.report(act, key, failure, doubtful)

        return until_known(self.clock, send, read_back, conflict, report)
