"""Where a life can be struck, and which strikes are equal and so are done once.

A restart knows only what outlives a crash. Two crashes of a driver between which nothing durable has changed differ
only in time, so one of them is enough; so are two reads of one object between which nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from support.faulty_store import Fault
from support.sim_world import Strike, World


def deaths_of_drivers(calm: World) -> Iterator[Strike]:
    """The driver killed in each durable state in which it can be: around its writes, and in the steps of Spark."""
    driver = list(zip(calm.calls["driver"], calm.moments["driver"], strict=True))
    writes = [(call.number, moment) for call, moment in driver if call.writes]
    found = [(moment, Strike("driver", number, Fault.CRASH_BEFORE)) for number, moment in writes]
    found += [(moment + 1, Strike("driver", number, Fault.CRASH_AFTER)) for number, moment in writes]
    found += [(moment, Strike("spark", at)) for at, moment in enumerate(calm.moments["spark"], 1)]
    yield from dict(reversed(found)).values()


def failures_of_batches(calm: World) -> Iterator[Strike]:
    """A query failing before each of its steps."""
    yield from (Strike("batch", number) for number in range(1, len(calm.phases) + 1))


def writes_of(calm: World, actor: str, *faults: Fault) -> Iterator[Strike]:
    """Each write, with each of these faults."""
    for call in calm.calls[actor]:
        if call.writes:
            yield from (Strike(actor, call.number, fault) for fault in faults)


def reads_of(calm: World, actor: str) -> Iterator[Strike]:
    """Each read left unanswered."""
    seen = set()
    for call, moment in zip(calm.calls[actor], calm.moments[actor], strict=True):
        if not call.writes and (call.method, call.key, moment) not in seen:
            seen.add((call.method, call.key, moment))
            yield Strike(actor, call.number, Fault.REPLY_LOST)
