"""Which read task reads which part: rendezvous hashing with equal shares, so that few parts move."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping


def place(parts: Collection[str], tasks: int) -> dict[str, int]:
    """The task of each part, from 0 on; no task has more than its share, since a batch waits for the last one."""
    tasks = max(1, min(tasks, len(parts)))
    room = [math.ceil(len(parts) / tasks)] * tasks
    placed = {}
    for part in sorted(parts):
        wanted = sorted(range(tasks), key=lambda task: _score(part, task), reverse=True)
        task = next(task for task in wanted if room[task])
        room[task] -= 1
        placed[part] = task
    return placed


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """The parts that both have, in other tasks."""
    return sorted(part for part, task in after.items() if before.get(part, task) != task)


def _score(part: str, task: int) -> bytes:
    return hashlib.sha256(f"{task}/{part}".encode()).digest()
