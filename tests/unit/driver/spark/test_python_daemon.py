"""The daemon of a replay's Python workers: what it patches, whichever of pyspark's modules imports the other."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.fast

# As workers of one version of Spark see it: 4.0 and 4.1 import the worker with the daemon, others when one is forked.
AS_SPARK = """
import io, sys, types
from airflow_streamstate.driver.spark import python_daemon
import pyspark.util

daemon = types.ModuleType("pyspark.daemon")


def manager():
    import pyspark.worker

    out = io.BytesIO()
    try:
        exec(compile("def speed(minutes): return 1 // minutes\\nspeed(0)", "job.py", "exec"), {})
    except ZeroDivisionError as error:
        pyspark.worker.handle_worker_exception(error, out)
    print(out.getvalue().decode(errors="replace"))


daemon.manager = manager


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark.daemon":
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, self)

    def create_module(self, spec):
        return daemon

    def exec_module(self, module):
        if WITH_WORKER == "daemon":
            import pyspark.worker


WITH_WORKER = sys.argv[1]
sys.meta_path.insert(0, Finder())
if WITH_WORKER == "before":
    import pyspark.worker
python_daemon.main()
"""


@pytest.mark.parametrize("with_worker", ["before", "daemon", "fork"])
def test_a_worker_tells_the_values_whenever_it_is_imported(with_worker: str) -> None:
    """Before the daemon, with it as of Spark 4.0 and 4.1, and after it."""
    command = (sys.executable, "-c", AS_SPARK, with_worker)
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "values where it failed: job.py, line 1, in speed: minutes=0" in ran.stdout
