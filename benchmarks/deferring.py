"""``python -m benchmarks.deferring STREAMS SECONDS``: that many triggers in one process, as in a triggerer.

Reports ``{"ready": ...}`` when each has looked once, ``{"quiet": ...}`` after SECONDS of nothing, and
``{"fired": STREAM, "at": ...}`` for each that fires, as lines of JSON; ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.triggers.streamstate import StreamStateTrigger
from benchmarks.recorded import DEPLOYMENT_ID, stream_name

FIRST_LOOKS_SECONDS = 90.0


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rss_mb() -> float:
    kb = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(kb.split()[1]) / 1024


async def _wait_for(stream_id: str) -> None:
    watch = WaitCondition("drained", stream_id, DEPLOYMENT_ID)
    trigger = StreamStateTrigger(watch=watch.to_json(), streamstate_conn_id="streamstate_default")
    async for event in trigger.run():
        _say(fired=stream_id, at=SYSTEM_CLOCK.now().timestamp(), outcome=event.payload["outcome"])


async def _all(streams: int, seconds: float) -> None:
    tasks = [asyncio.create_task(_wait_for(stream_name(number))) for number in range(streams)]
    await asyncio.sleep(FIRST_LOOKS_SECONDS)
    _say(ready=streams, first_cpu_seconds=_cpu_seconds(), rss_mb=_rss_mb())
    cpu = _cpu_seconds()
    await asyncio.sleep(seconds)
    _say(quiet=seconds, cpu_seconds=_cpu_seconds() - cpu, rss_mb=_rss_mb())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_all(int(sys.argv[1]), float(sys.argv[2])))
