"""A run of a script is ended from another thread, whatever it waits for, and can be run again."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[3]
STARTER = """
import sys, threading, time
from airflow_streamstate.driver.script import ScriptEnd
from airflow_streamstate.driver.script import run_script

script, end, is_over = sys.argv[1], ScriptEnd(), threading.Event()

def ask():
    while not is_over.wait(0.3):
        end.ask()

for run in (1, 2):
    is_over.clear()
    asking = threading.Thread(target=ask, name="streamstate-test")
    asking.start()
    failure = run_script(script, [str(run)], end=end)
    is_over.set()
    asking.join()
    print("run", run, "has ended:", None if failure is None else failure.error, flush=True)
print("left:", [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()])
"""
SCRIPTS = {
    "sleeps": "import time\nwhile True: time.sleep(600)",
    "waits for an event": "import threading\nthreading.Event().wait()",
    "waits for a thread that sleeps": """
        import threading, time
        def monitor():
            while True:
                time.sleep(0.05)
        threading.Thread(target=monitor).start()
    """,
    "has a daemon thread": """
        import threading, time
        def monitor():
            while True:
                time.sleep(0.05)
        threading.Thread(target=monitor, daemon=True).start()
        time.sleep(600)
    """,
    "has a pool": """
        import time
        from concurrent.futures import ThreadPoolExecutor
        def monitor():
            while True:
                time.sleep(0.05)
        pool = ThreadPoolExecutor(2)
        future = pool.submit(monitor)
        future.result()
    """,
    "is asynchronous": """
        import asyncio
        async def main():
            await asyncio.Event().wait()
        asyncio.run(main())
    """,
    "catches errors": """
        import time
        while True:
            try:
                time.sleep(600)
            except Exception:
                print("an error")
    """,
    "cleans up": """
        import sys, time
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted")
        finally:
            print("cleans up", sys.argv[1])
    """,
}
WORDS = {"cleans up": ("cleans up 1\n", "cleans up 2\n")}


def _run(tmp_path: Path, script: str) -> str:
    (tmp_path / "job.py").write_text(textwrap.dedent(script))
    (tmp_path / "starter.py").write_text(STARTER)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "starter.py"), str(tmp_path / "job.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_never_ends_is_ended_and_can_be_run_again(tmp_path: Path, name: str) -> None:
    """As by ``sys.exit()`` in each of its threads: what it cleans up is cleaned up, and no thread is left."""
    first, second = WORDS.get(name, ("", ""))
    out = _run(tmp_path, SCRIPTS[name])
    assert out == f"{first}run 1 has ended: None\n{second}run 2 has ended: None\nleft: []\n"


def test_a_script_that_leaves_with_a_status_has_failed(tmp_path: Path) -> None:
    """The caller knows that it was asked to."""
    out = _run(tmp_path, "import time\ntry:\n    time.sleep(600)\nexcept SystemExit:\n    raise SystemExit(3)")
    assert "run 1 has ended: SystemExit: 3\n" in out


CALLS = """
import time
__name__ = "py4j.clientserver"
begun = ended = 0

def call():
    global begun, ended
    begun += 1
    time.sleep(0.5)
    ended += 1
"""


def test_an_answer_of_the_jvm_is_not_cut(tmp_path: Path) -> None:
    """The main thread would take the rest of it for the answer to its next question."""
    (tmp_path / "calls.py").write_text(CALLS)
    script = """
        import calls
        try:
            while True:
                calls.call()
                for _ in range(100_000):
                    pass
        finally:
            print(calls.begun == calls.ended)
    """
    assert _run(tmp_path, script).startswith("True\nrun 1 has ended: None\nTrue\n")


def test_nothing_happens_between_two_runs(tmp_path: Path) -> None:
    """Who asks too late ends nothing."""
    starter = STARTER.replace("for run in (1, 2):", "end.ask()\ntime.sleep(0.1)\nfor run in (1, 2):")
    (tmp_path / "job.py").write_text("print('a line')")
    (tmp_path / "starter.py").write_text(starter)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "starter.py"), str(tmp_path / "job.py")],
        capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.stdout.count("a line\n") == 2
