"""A store that fails on purpose, at a call that the test chooses, and counts every call.

A kill-point sweep runs a life once with a plan without faults, takes ``len(plan.calls)`` as n, and for each k of n and
each of BEFORE, AFTER and REPLY_LOST lives it again. One plan is one actor: it may be shared by all that this actor
calls (its stores, its launcher), so that the numbers run through. Several actors wrap the same inner store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, TypeVar

from airflow_streamstate.errors import OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.store.base import TEMPORARY_PREFIX, ObjectInfo, Store, StoredObject
from airflow_streamstate.store.local import LocalStore

Result = TypeVar("Result")


class SimulatedCrash(BaseException):
    """The actor was killed here. Whatever it still tries in ``finally`` blocks or threads kills it again."""


class Fault(Enum):
    """What goes wrong at a call."""

    CRASH_BEFORE = "the actor dies, and the call never happens"
    CRASH_AFTER = "the call happens, and the actor dies before it hears of it"
    REPLY_LOST = "the call happens, and the caller gets an unknown outcome (a write) or a failure (a read)"
    UNAVAILABLE = "the call does not happen, and the caller is notified"
    NO_SPACE = "as UNAVAILABLE, in the words of a full disk"
    HALF_WRITTEN = "as NO_SPACE, and half of the bytes stay under a temporary name where the store has such names"


KILL_POINTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.REPLY_LOST)


@dataclass(frozen=True)
class Call:
    """One counted call; ``number`` starts at 1, ``key`` is the target's."""

    number: int
    method: str
    key: str
    writes: bool


class FaultPlan:
    """What shall go wrong for one actor, and a record of all that it called.

    Args:
        at: the fault of each struck call, by its number among all calls.
        at_write: the fault of each struck write, by its number among the writes.
        every_write: the fault of all other writes.
        meanwhile: what happens just before the call of that number, in the same thread: another actor's whole life
            makes this one a zombie that was paused there.

    Attributes:
        before_each: called before each call, in the same thread.
    """

    def __init__(
        self,
        at: Mapping[int, Fault] | None = None,
        *,
        at_write: Mapping[int, Fault] | None = None,
        every_write: Fault | None = None,
        meanwhile: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:
        self.at = dict(at or {})
        self.at_write = dict(at_write or {})
        self.every_write = every_write
        self.meanwhile = dict(meanwhile or {})
        self.calls: list[Call] = []
        self._writes_count = 0
        self.dead = False
        self.before_each: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @property
    def writes(self) -> list[Call]:
        """The calls that write, in their order."""
        return [call for call in self.calls if call.writes]

    def run(
        self,
        method: str,
        key: str,
        act: Callable[[], Result],
        *,
        writes: bool,
        leave_half: Callable[[], None] = lambda: None,
    ) -> Result:
        """Count the call, then do it, or what the plan orders instead.

        Raises:
            SimulatedCrash: the actor is dead, now or since an earlier call.
            OutcomeUnknownError: a write was done and its reply lost.
            UnavailableError: nothing was done, or a read's reply was lost.
        """
        self.before_each()
        call, fault = self._counted(method, key, writes)
        if call.number in self.meanwhile:
            self.meanwhile[call.number]()
        facts: dict[str, Any] = {"call_number": call.number, "method": method, "key": key}
        if fault is Fault.CRASH_BEFORE:
            self._die(call)
        if fault is Fault.UNAVAILABLE:
            raise UnavailableError("the store does not answer", **facts)
        if fault is Fault.HALF_WRITTEN:
            leave_half()
        if fault in (Fault.NO_SPACE, Fault.HALF_WRITTEN):
            raise UnavailableError("the disk is full", reason="No space left on device", **facts)
        if fault not in (Fault.CRASH_AFTER, Fault.REPLY_LOST):
            return act()
        with suppress(StreamStateError):  # a refusal is a reply, too, and is lost with it
            act()
        if fault is Fault.CRASH_AFTER:
            self._die(call)
        if writes:
            raise OutcomeUnknownError("the store did not say whether the write landed", **facts)
        raise UnavailableError("the store does not answer", **facts)

    def _counted(self, method: str, key: str, writes: bool) -> tuple[Call, Fault | None]:
        with self._lock:
            if self.dead:
                raise SimulatedCrash(f"the actor is dead and cannot {method} {key}")
            call = Call(len(self.calls) + 1, method, key, writes)
            self.calls.append(call)
            self._writes_count += writes
            if call.number in self.at or not writes:
                return call, self.at.get(call.number)
            return call, self.at_write.get(self._writes_count, self.every_write)

    def _die(self, call: Call) -> NoReturn:
        self.dead = True
        raise SimulatedCrash(f"killed at call {call.number}: {call.method} {call.key}")


class FaultyStore:
    """Any store, with the faults of a plan.

    Args:
        inner: the store that does the work.
        plan: what goes wrong; shared with whatever else the same actor calls.
    """

    def __init__(self, inner: Store, plan: FaultPlan | None = None) -> None:
        self.inner = inner
        self.plan = plan if plan is not None else FaultPlan()

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def calls(self) -> list[tuple[int, str, str]]:
        """(number, method, key) of every call of this actor so far."""
        return [(call.number, call.method, call.key) for call in self.plan.calls]

    def get(self, key: str) -> StoredObject | None:
        return self.plan.run("get", key, lambda: self.inner.get(key), writes=False)

    def head(self, key: str) -> ObjectInfo | None:
        return self.plan.run("head", key, lambda: self.inner.head(key), writes=False)

    def create(self, key: str, body: bytes) -> str:
        return self._write("create", key, lambda: self.inner.create(key, body), body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._write("replace", key, lambda: self.inner.replace(key, body, version), body)

    def put(self, key: str, body: bytes) -> str:
        return self._write("put", key, lambda: self.inner.put(key, body), body)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        # Read to its end at once: one listing is one call, counted when it is asked for.
        listed = self.plan.run("list_objects", prefix, lambda: list(self.inner.list_objects(prefix)), writes=False)
        return iter(listed)

    def list_folders(self, folder: str) -> list[str]:
        return self.plan.run("list_folders", folder, lambda: self.inner.list_folders(folder), writes=False)

    def copy(self, source_key: str, target_key: str) -> None:
        self._write("copy", target_key, lambda: self.inner.copy(source_key, target_key))

    def link(self, source_key: str, target_key: str) -> bool:
        return self._write("link", target_key, lambda: self.inner.link(source_key, target_key))

    def delete(self, key: str, version: str | None = None) -> None:
        self._write("delete", key, lambda: self.inner.delete(key, version))

    def _write(self, method: str, key: str, act: Callable[[], Result], body: bytes = b"") -> Result:
        return self.plan.run(method, key, act, writes=True, leave_half=lambda: self._leave_half(key, body))

    def _leave_half(self, key: str, body: bytes) -> None:
        """What a kill or a full disk leaves of a write: half a temporary file. Other stores keep nothing of it."""
        if isinstance(self.inner, LocalStore):
            path = self.inner.path_of(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / f"{TEMPORARY_PREFIX}half-{len(self.plan.calls)}").write_bytes(body[: len(body) // 2])
