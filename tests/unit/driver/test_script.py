from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[3]
STARTER = """
import sys
from airflow_streamstate.driver.script import run_script
from airflow_streamstate.driver.main import hide_in_uncaught
redacted = lambda text: text.replace("hunter2", "***")
hide_in_uncaught(redacted)
failure = run_script(sys.argv[1], sys.argv[2:], redacted=redacted)
status = 0 if failure is None else failure.exit_status
import json, os
if os.environ.get("TOLD"):
    told = None if failure is None else {"error": failure.error, "traceback": failure.traceback}
    open(os.environ["TOLD"], "w").write(json.dumps(told))
sys.exit(status)
"""


def _write(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(text))
    return script


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
    )


def _bare(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, str(script), *arguments])


def _under_us(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    starter = script.parent / "elsewhere" / "starter.py"
    starter.parent.mkdir(exist_ok=True)
    starter.write_text(STARTER)
    return _run([sys.executable, str(starter), str(script), *arguments], **environment)


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


SCRIPTS = {
    "arguments, siblings and main": """
        import sys, sibling
        class Row:
            pass
        import pickle
        assert pickle.loads(pickle.dumps(Row())).__class__ is Row
        print(__name__, sys.argv, __file__, sibling.VALUE, sys.path[0], sys.modules["__main__"].Row is Row)
    """,
    "names and annotations": """
        '''its own words'''
        import dataclasses
        def f(x: int) -> str: ...
        count: int = 1
        print(sorted(globals()), __doc__, __spec__, __package__, __loader__.path == __file__)
        print(f.__annotations__, __annotations__)
    """,
    "exit with a number": "import sys; sys.exit(7)",
    "exit with a big number": "import sys; sys.exit(258)",
    "exit with nothing": "import sys; sys.exit()",
    "exit with words": "import sys; sys.exit('no input today')",
    "exit with a false value": "import sys; sys.exit(False)",
    "an error": """
        def f(x):
            return 1 / x
        f(0)
    """,
    "an error from another": """
        try:
            {}["a"]
        except KeyError as error:
            raise RuntimeError("worse") from error
    """,
    "a group of errors": "raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])",
    "no python": "def f(:\n    pass\n",
    "an excepthook of its own": """
        import sys
        sys.excepthook = lambda kind, value, trace: print("hook:", kind.__name__, value)
        raise ValueError("x")
    """,
    "a thread that outlives the last line": """
        import pickle, threading, time
        class Late:
            pass
        def work():
            time.sleep(0.3)
            pickle.loads(pickle.dumps(Late()))
            print("late, but whole")
        threading.Thread(target=work).start()
        print("last line")
    """,
    "a thread that outlives an error": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.3), print("late"))).start()
        raise ValueError("x")
    """,
    "atexit": """
        import atexit
        class Kept:
            pass
        def at_exit():
            import __main__, pickle
            print("exit", __main__.Kept is Kept, len(pickle.dumps(Kept())) > 0)
        atexit.register(at_exit)
    """,
    "a pool of threads": """
        import time
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        for number in range(3):
            pool.submit(lambda number=number: (time.sleep(0.1), print("late", number)))
    """,
    "an error in a thread": """
        import threading
        def work(x):
            return 1 / x
        thread = threading.Thread(target=work, args=(0,), name="worker")
        thread.start()
        thread.join()
        exits = threading.Thread(target=__import__("sys").exit, args=("silent",))
        exits.start()
    """,
    "an error in a finalizer": """
        class Worn:
            def __del__(self):
                raise ValueError("worn out")
            def __repr__(self):
                return "worn"
        Worn.__del__.__qualname__ = "Worn.__del__"
        Worn()
        print("goes on")
    """,
    "an excepthook of its own for threads": """
        import threading
        threading.excepthook = lambda args: print("hook:", args.exc_type.__name__, args.thread.name)
        thread = threading.Thread(target=lambda: 1 / 0, name="worker")
        thread.start()
    """,
    "a hint for a typing error": "import json\njson.lods('1')",
    "a daemon thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print("does not wait")
    """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_python_runs_it(tmp_path: Path, name: str) -> None:
    """The same output, the same words on failure, the same exit status as ``python job.py``."""
    script = _write(tmp_path, SCRIPTS[name])
    (tmp_path / "sibling.py").write_text("VALUE = 42\n")
    bare = _bare(script, "a", "c d")
    ours = _under_us(script, "a", "c d")
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
    assert _without_addresses(ours.stderr) == _without_addresses(bare.stderr)


def test_a_script_that_is_not_there_ends_as_with_python(tmp_path: Path) -> None:
    """Exit status 2 and the path."""
    bare = _bare(tmp_path / "missing.py")
    ours = _under_us(tmp_path / "missing.py")
    assert ours.returncode == bare.returncode == 2
    assert ours.stderr == bare.stderr


@pytest.mark.parametrize(
    ("text", "error", "has_traceback"),
    [
        ("raise ValueError('bad line')", "ValueError: bad line", True),
        ("import sys; sys.exit('no input')", "no input", False),
        ("import sys; sys.exit(3)", "SystemExit: 3", False),
        ("import sys; sys.exit(0)", None, False),
        ("x = 1", None, False),
    ],
)
def test_a_failure_is_told_with_its_words(tmp_path: Path, text: str, error: str | None, has_traceback: bool) -> None:
    """The deployment's last event has the script's own error; success is no failure."""
    told = tmp_path / "told.json"
    _under_us(_write(tmp_path, text), TOLD=str(told))
    failure = json.loads(told.read_text())
    if error is None:
        assert failure is None
        return
    assert failure["error"] == error
    assert ("job.py" in failure["traceback"]) is has_traceback
    assert "run_script" not in failure["traceback"]


LEAKS = {
    "an error": "raise ValueError('cannot log in with hunter2')",
    "what it came from": """
        try:
            raise KeyError("hunter2")
        except KeyError as error:
            raise RuntimeError("worse") from error
    """,
    "words at its exit": "import sys; sys.exit('cannot log in with hunter2')",
    "a thread": """
        import threading
        def work():
            raise ValueError("cannot log in with hunter2")
        threading.Thread(target=work, name="worker").start()
    """,
    "a finalizer": """
        class Worn:
            def __del__(self):
                raise ValueError("cannot log in with hunter2")
        Worn()
    """,
    "a hook that fails": """
        import sys
        def hook(kind, error, trace):
            raise RuntimeError("no mail with hunter2")
        sys.excepthook = hook
        raise ValueError("cannot log in with hunter2")
    """,
    "a hook that passes on to the one before": """
        import sys
        before = sys.excepthook
        def hook(*error):
            print("hook")
            before(*error)
        sys.excepthook = hook
        raise ValueError("cannot log in with hunter2")
    """,
}


@pytest.mark.parametrize("name", LEAKS)
def test_python_prints_what_nobody_caught_without_secrets(tmp_path: Path, name: str) -> None:
    """Otherwise word for word, with the same exit status, as ``python job.py``."""
    # The secret is not in the script's own lines, which a traceback quotes.
    script = _write(tmp_path, "from sibling import A\n" + textwrap.dedent(LEAKS[name]).replace("hunter2'", "' + A"))
    script.write_text(script.read_text().replace('hunter2"', '" + A'))
    (tmp_path / "sibling.py").write_text("A = 'hunter2'\n")
    bare = _bare(script)
    ours = _under_us(script)
    assert "hunter2" in bare.stderr
    assert _without_addresses(ours.stderr) == _without_addresses(bare.stderr).replace("hunter2", "***")
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)


def test_what_the_runtime_refuses_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    """Of a trigger that knows no barrier: the script's own line, the sentence, and what to do; the status is 1."""
    script = _write(
        tmp_path,
        """
        from airflow_streamstate.checkpoint.guards import guard_start
        def start():
            guard_start({}, {}, "continuous")
        start()
        """,
    )
    told = tmp_path / "told.json"
    ended = _under_us(script, TOLD=str(told))
    assert ended.returncode == 1
    assert ended.stderr.startswith("job.py, line 4: the trigger continuous knows no barrier")
    assert ended.stderr.count("\n") == 1
    said = json.loads(told.read_text())
    assert said["traceback"] == ""
    assert said["error"].startswith("the trigger continuous knows no barrier")
    assert "Traceback" not in ended.stderr
