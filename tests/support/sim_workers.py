"""Runs lives in several processes."""

from __future__ import annotations

import gc
import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable

FEW = 8
"""This many lives run in this process: to fork a run with thousands of collected tests takes longer than a life."""
LIMIT_SECONDS = 1_800
"""A worker whose parent was killed does not live on."""


class DeadForkWarning(UserWarning):
    """Of what an earlier test left in this process, such as a library whose threads do not live in a fork."""


def in_processes(count: int, act: Callable[[int], str | None]) -> list[str]:
    """Do it for 0 to ``count`` - 1, in one fork of this process for each processor; what was reported, in order.

    Args:
        act: returns a text if there is something to report, and raises nothing.

    A fork that dies before it has reported all is a warning, which the test run shows; its share runs in this process,
    so that each life is judged and one that ends its process is still seen. A few run in this process alone.
    """
    if count <= FEW:
        return [text for number in range(count) if (text := act(number)) is not None]
    workers = max(1, min(count, len(os.sched_getaffinity(0))))
    # A fork must not end what only its parent may: a client with threads, in a circle of objects of an earlier test.
    gc.collect()
    gc.freeze()
    shares = [range(worker, count, workers) for worker in range(workers)]
    forks = [(share, *_fork(share, act)) for share in shares]
    said: list[tuple[int, str]] = []
    try:
        for share, reader, pid in forks:
            with os.fdopen(reader, "rb") as stream:
                body = stream.read()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if body:
                said += [tuple(one) for one in json.loads(body)]
                continue
            warnings.warn(DeadForkWarning(f"a fork ended with {status} before it had told all"), stacklevel=2)
            said += [(number, text) for number in share if (text := act(number)) is not None]
    finally:
        gc.unfreeze()
    return [text for _, text in sorted(said)]


def _fork(numbers: range, act: Callable[[int], str | None]) -> tuple[int, int]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner, which do nothing here
        pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        signal.alarm(LIMIT_SECONDS)
        os.close(reader)
        texts = [(number, act(number)) for number in numbers]
        with os.fdopen(writer, "w") as stream:
            json.dump([(number, text) for number, text in texts if text is not None], stream)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
