"""``attach()``: a script that is submitted itself becomes an attempt of its deployment.

Under the runner, in a rehearsal and in a plain ``spark-submit`` the call does nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS
from airflow_streamstate.driver.attempt.reports import say_to_driver_log
from airflow_streamstate.driver.config import DriverConfig, read_driver_config
from airflow_streamstate.driver.main import (
    FAILED_STATUS,
    begin_attempt,
    end_process,
    intercept,
    see_reads,
    with_own_credentials,
)
from airflow_streamstate.driver.script import FoundModules, find_beside, join_threads, print_refusal
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS, ScriptFailure, refusal_in
from airflow_streamstate.errors import FencedError, StreamStateError

DRIVER_VARIABLE = "STREAMSTATE_DRIVER"
"""Path of ``driver.json``, set by ``deploy --attach``."""


class Attached:
    """The supervision of a script; a script need not use it.

    As a context manager it ends the attempt with its block. Without a block the end of the process ends the attempt:
    uncaught errors and ``sys.exit`` then count as failures, also a ``sys.exit`` that the script catches; a bare
    ``raise SystemExit`` does not.

    Attributes:
        is_supervised: whether this process is an attempt of a deployment.
    """

    def __init__(self, attempt_life: AttemptLife | None = None, agent: Agent | None = None) -> None:
        self.is_supervised = attempt_life is not None or OF_THIS_PROCESS.is_supervised
        self._attempt_life = attempt_life
        self._agent = agent
        self._redacted = (lambda text: text) if attempt_life is None else attempt_life.attempt.reporter.redacted
        self._failure: ScriptFailure | None = None

    def __enter__(self) -> Attached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attempt_life is None:
            return
        self._failure = None if error is None else _failure_of(error)
        refusal = None if error is None else self._refusal_in(error)
        own, status = _status_of(self._failure), self._end()
        if error is not None and refusal is not None:
            print_refusal(error, refusal)
            raise SystemExit(status) from None
        if status != own:
            if error is not None:
                traceback.print_exception(type(error), error, error.__traceback__)
            raise SystemExit(status)

    def watch(self) -> None:
        """Hook into ``sys.exit``, ``sys.excepthook`` and the end of the process."""
        leave, show = sys.exit, sys.excepthook

        def exit_with(status: str | int | None = None, /) -> NoReturn:
            self._failure = _failure_of(SystemExit(status))
            leave(status)

        def show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            refusal = self._refusal_in(error)
            if refusal is None:
                show(kind, error, trace)
            else:
                print_refusal(error, refusal)

        sys.exit, sys.excepthook = exit_with, show_uncaught
        # Unlike ``atexit``, this runs while threads can still be started. The last one registered runs first, so the
        # thread pool that a snapshot needs has to register its own end before.
        importlib.import_module("concurrent.futures.thread")
        threading._register_atexit(self._end_process)  # type: ignore[attr-defined]

    def _end_process(self) -> None:
        join_threads()
        uncaught = getattr(sys, "last_value", None)
        if uncaught is not None:
            self._failure = _failure_of(uncaught)
        own, status = _status_of(self._failure), self._end()
        if status != own:
            end_process(status)

    def _refusal_in(self, error: BaseException) -> ScriptFailure | None:
        return refusal_in(error, self._redacted)

    def _end(self) -> int:
        """End the attempt, once; the exit status of the process."""
        attempt_life, self._attempt_life = self._attempt_life, None
        if attempt_life is None:
            return _status_of(self._failure)
        try:
            return attempt_life.script_ended(self._failure)
        finally:
            if self._agent is not None:
                self._agent.stop()


def attach() -> Attached:
    """Become the attempt of a deployment that ``deploy --attach`` started this process for.

    Call it before the first query starts. From then on the script's ``__file__`` is where it was deployed from, and
    imports find what is next to it. In any other process it does nothing, and logs that.

    Raises:
        SystemExit: this process cannot become that attempt; status 4 where another driver is that attempt, else 1.
    """
    path = os.environ.pop(DRIVER_VARIABLE, None)  # a process that the script starts is no attempt
    if path is None:
        if not OF_THIS_PROCESS.is_supervised:
            say_to_driver_log("there is no deployment to attach to; the script runs as it is")
        return Attached()
    try:
        config = with_own_credentials(read_driver_config(Path(path)))
        attempt_life, agent = begin_attempt(config, SYSTEM_CLOCK)
    except StreamStateError as error:
        say_to_driver_log(str(error))
        sys.exit(FENCED_STATUS if isinstance(error, FencedError) else FAILED_STATUS)
    OF_THIS_PROCESS.is_supervised = True
    attached = Attached(attempt_life, agent)
    attached.watch()
    intercept(attempt_life, SYSTEM_CLOCK)
    if config.script_path is not None:
        _lie_at(config.script_path, config, attempt_life)
    see_reads(config, attempt_life.attempt.spec)
    return attached


def _lie_at(script_path: str, config: DriverConfig, attempt_life: AttemptLife) -> None:
    """Run the rest of the script as if it were where it was deployed from, with the pinned modules."""
    found = FoundModules(SYSTEM_CLOCK)
    found.belong_to(attempt_life.attempt)
    find_beside(script_path, config.application, config.modules, found.keep)
    sys.path.insert(0, str(Path(script_path).resolve().parent))
    sys.modules["__main__"].__file__ = sys.argv[0] = script_path


def _status_of(failure: ScriptFailure | None) -> int:
    return 0 if failure is None else failure.exit_status


def _failure_of(error: BaseException) -> ScriptFailure | None:
    """None where python would exit with 0."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or code == 0:
            return None
        status = code & 0xFF if isinstance(code, int) else 1
        return ScriptFailure(f"SystemExit: {code}" if isinstance(code, int) else str(code), "", status)
    refusal = refusal_in(error)
    if refusal is not None:
        return refusal
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    return ScriptFailure(summary, "".join(traceback.format_exception(type(error), error, error.__traceback__)), 1)
