"""The processes in which lives run: none is passed over."""

from __future__ import annotations

import os
import signal

import pytest

from support.sim_workers import FEW, DeadForkWarning, in_processes


def test_what_a_fork_that_died_had_to_judge_is_judged_and_its_end_is_shown() -> None:
    """Each case is run, though the process of some was killed."""
    parent = os.getpid()

    def act(number: int) -> str | None:
        if os.getpid() != parent and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"said {number}" if number % 2 else None

    with pytest.warns(DeadForkWarning, match="ended with -9"):
        assert in_processes(FEW + 1, act) == ["said 1", "said 3", "said 5", "said 7"]
