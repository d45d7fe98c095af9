"""One home that does not answer holds up no wait for a different one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.hooks.configuration import trigger_threads
from airflow_streamstate.triggers.triggerer import in_pool

WAITS = 100
LONG_SECONDS = 60.0


def test_a_hundred_waits_of_another_home_resume_while_one_home_hangs(tmp_path: Path) -> None:
    """More looks hang than there are threads; the others end all the same, before any of those does."""
    hangs, answers = (Controller.local(Home(HomeConfig(str(tmp_path / name)))) for name in ("hangs", "answers"))
    may_answer = threading.Event()

    async def story() -> tuple[list[int], bool]:
        stuck = [asyncio.create_task(in_pool(hangs, may_answer.wait, LONG_SECONDS)) for _ in range(WAITS)]
        await asyncio.sleep(0)
        found = await asyncio.wait_for(
            asyncio.gather(*(in_pool(answers, lambda number=number: number) for number in range(WAITS))), LONG_SECONDS
        )
        is_any_over = any(one.done() for one in stuck)
        may_answer.set()
        await asyncio.gather(*stuck)
        return list(found), is_any_over

    assert trigger_threads() < WAITS
    assert asyncio.run(story()) == (list(range(WAITS)), False)
