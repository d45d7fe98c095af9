"""The end of the demo by signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from demo.ending import Ending

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def ending() -> Iterator[Ending]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    made = Ending()
    made.on_signals()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", SIGNALS)
def test_only_the_first_signal_interrupts(ending: Ending, first: signal.Signals) -> None:
    """A terminal signals the whole process group, and tox its process again: the second must not cut the end short."""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), first)
    assert ending.is_asked
    for number in SIGNALS:
        os.kill(os.getpid(), number)
