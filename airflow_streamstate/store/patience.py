"""How long a look at one stream may hold up the looks at others.

Whoever looks at many streams in turn gives each a short time: it waits little for a lock, and reads a part of a long
list, and the rest at its next look. A look that ends so decides nothing. All else waits with a deadline, and reads all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SHORT_SECONDS = 0.5
"""For all locks of one look together: a writer of ours holds one for some milliseconds."""
MOST_EVENTS = 1_000
"""That one look reads of a stream: on a far store half a minute."""


@dataclass
class Patience:
    """For how long whatever a block does may still wait for locks, altogether."""

    left_seconds: float


PATIENCE: ContextVar[Patience | None] = ContextVar("streamstate_patience", default=None)


@contextmanager
def one_of_many() -> Iterator[None]:
    """The block is a look at one stream of many: within it a kept lock, and a list too long for one look, is an
    error."""
    token = PATIENCE.set(Patience(SHORT_SECONDS))
    try:
        yield
    finally:
        PATIENCE.reset(token)


def as_one_of_many(call: Callable[..., T], *arguments: object) -> T:
    """The result of a call, within ``one_of_many``."""
    with one_of_many():
        return call(*arguments)


def most_events() -> int | None:
    """How many events the look that goes on may read; None for all."""
    return None if PATIENCE.get() is None else MOST_EVENTS
