"""Spark's Python daemon in a replay: it reports the values where a function of the script fails in a worker.

``python -m`` of this module replaces ``python -m pyspark.daemon``. With a debugger, it opens at that place.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Any

from airflow_streamstate.driver.rehearsal.script_failures import (
    DEBUGGER_VARIABLE,
    MARK,
    debug_breakpoints,
    debug_failure,
    values_at,
)

_MODULE = "spark.python.daemon.module"
_USES_DAEMON = "spark.python.use.daemon"
_PATHS = "spark.executorEnv.PYTHONPATH"
_SOCKET = f"spark.executorEnv.{DEBUGGER_VARIABLE}"
_LOCAL = "local"
_REPORT = "handle_worker_exception"
_WORKER = "pyspark.worker"


def run_workers_with_values(debugger: str) -> str:
    """Let the workers of the session that a script will make run by this daemon; the reason where they will not.

    Args:
        debugger: the socket of a debugger; "" without one.
    """
    import pyspark.util
    from pyspark import SparkContext

    if not hasattr(pyspark.util, _REPORT):
        return "the values where a function of the script fails are shown by Spark 4.0 and newer"
    SparkContext._ensure_initialized()
    properties = SparkContext._jvm.java.lang.System
    master = str(properties.getProperty("spark.master") or _LOCAL)
    if not master.startswith(_LOCAL):
        return "the values where a function of the script fails are shown with a local master only"
    if properties.getProperty(_MODULE) or str(properties.getProperty(_USES_DAEMON)).lower() == "false":
        return f"the deployment sets {_MODULE} or {_USES_DAEMON}: values where a function fails are not shown"
    # The zip of this launch, which has nothing else that a worker could import.
    paths = (str(Path(__file__).parents[3]), properties.getProperty(_PATHS) or "")
    properties.setProperty(_PATHS, os.pathsep.join(filter(None, paths)))
    properties.setProperty(_MODULE, __name__)
    if debugger:
        properties.setProperty(_SOCKET, debugger)
    return ""


def main() -> None:
    """Run the daemon, as pyspark's does. Before it forks: workers take over what is patched here."""
    tell_values()
    import pyspark.daemon  # after it, as that of Spark 4.0 and 4.1 imports pyspark.worker

    pyspark.daemon.manager()


def tell_values() -> None:
    """Let workers that are forked from this process report the values where a function fails."""
    import pyspark.util

    report = pyspark.util.handle_worker_exception
    debugger = os.environ.get(DEBUGGER_VARIABLE, "")

    def handle_worker_exception(error: BaseException, outfile: IO[bytes], *more: Any, **named: Any) -> None:
        if isinstance(error, Exception):
            if debugger:
                debug_failure(debugger, error)
            values = values_at(error.__traceback__)
            if values and hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(MARK + values)  # Spark sends the formatted traceback, which ends with the notes
        report(error, outfile, *more, **named)

    # A worker that is imported already has bound the function by name.
    for module in (pyspark.util, sys.modules.get(_WORKER)):
        if getattr(module, _REPORT, None) is report:
            setattr(module, _REPORT, handle_worker_exception)
    if debugger:
        debug_breakpoints(debugger)


if __name__ == "__main__":
    main()
