"""Runs the user's script as ``python script.py`` would: the same ``__main__``, the same output when it fails.

Not ``runpy``, which restores the old ``__main__`` after the last line: a thread that is still running then cannot
pickle the script's classes.
"""

from __future__ import annotations

import builtins
import itertools
import os
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path

from airflow_streamstate.driver.ending import ScriptEnd, script_threads
from airflow_streamstate.driver.pinned_modules import show_source
from airflow_streamstate.driver.shutdown.finishing import ScriptFailure, refusal_in

_PACKAGE = str(Path(__file__).resolve().parents[1])
_GROUP: type | tuple[()] = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on
_STARTERS: list[types.ModuleType | None] = []
MISSING_STATUS = 2
INTERRUPTED_STATUS = 130


def run_script(
    application: str,
    arguments: Sequence[str],
    before_report: Callable[[BaseException], None] = lambda _error: None,
    redacted: Callable[[str], str] = lambda text: text,
    script_path: str | None = None,
    end: ScriptEnd | None = None,
) -> ScriptFailure | None:
    """Run a script until its last line and its threads have ended; None where python would exit with 0.

    A failure is printed as python would print it, without secrets.

    Args:
        before_report: called with an error before it is printed; need not return.
        script_path: the ``__file__`` of the script, where it lay when it was deployed; None for ``application``.
        end: what another thread ends this run by.
    """
    shown = application if script_path is None else script_path
    try:
        source = Path(application).read_bytes()
    except OSError as error:
        text = f"can't open file '{application}': [Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: {text}", file=sys.stderr)
        return ScriptFailure(error=text, traceback="", exit_status=MISSING_STATUS)
    show_source(shown, source)
    module = _become_main(shown, arguments)
    with nullcontext() if end is None else end.run(module.__dict__):
        failure = _run_lines(source, shown, module, before_report, redacted)
        join_threads()
        if end is not None:
            end.leave_no_thread()
    return failure


def _run_lines(
    source: bytes,
    shown: str,
    module: types.ModuleType,
    before_report: Callable[[BaseException], None],
    redacted: Callable[[str], str],
) -> ScriptFailure | None:
    failure: ScriptFailure | None = None
    try:
        # dont_inherit: the `from __future__` of this file must not apply to the script.
        code = compile(source, shown, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102  running the script is the purpose
    except SystemExit as error:
        failure = _exit_failure(error, redacted)
    except BaseException as error:
        before_report(error)
        failure = _print_failure(error, redacted)
    return failure


def keep_surroundings() -> Callable[[], None]:
    """Remember the current folder and the environment, but for Spark's own variables; returns what restores them."""
    folder = Path.cwd()
    variables = {name: value for name, value in os.environ.items() if not _is_sparks(name)}

    def put_back() -> None:
        os.chdir(folder)
        for name in [name for name in os.environ if not _is_sparks(name) and name not in variables]:
            del os.environ[name]
        os.environ.update(variables)

    return put_back


def _is_sparks(variable: str) -> bool:
    return variable.startswith(("SPARK", "PYSPARK"))


def _become_main(application: str, arguments: Sequence[str]) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = application
    module.__loader__ = SourceFileLoader("__main__", application)
    module.__dict__.update({"__builtins__": builtins, "__cached__": None, "__annotations__": {}})
    # The module that started this process must stay alive: functions that are running use its globals.
    _STARTERS.append(sys.modules.get("__main__"))
    sys.modules["__main__"] = module
    sys.argv = [application, *arguments]
    _put_first_on_path(str(Path(application).resolve().parent))
    return module


def _put_first_on_path(folder: str) -> None:
    """In place of the folder of the script that started this process, which is not there in Python's safe path."""
    if getattr(sys.flags, "safe_path", False) and len(_STARTERS) == 1:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder


def _exit_failure(error: SystemExit, redacted: Callable[[str], str]) -> ScriptFailure | None:
    """As ``sys.exit``: None and 0 are success, a number is the status, anything else is printed with status 1."""
    code = error.code
    if code is None or code == 0:
        return None
    if isinstance(code, int):
        return ScriptFailure(error=f"SystemExit: {code}", traceback="", exit_status=code & 0xFF)
    print(redacted(str(code)), file=sys.stderr)
    return ScriptFailure(error=str(code), traceback="", exit_status=1)


def _print_failure(error: BaseException, redacted: Callable[[str], str]) -> ScriptFailure:
    refusal = refusal_in(error, redacted)
    if refusal is not None:
        print_refusal(error, refusal)
        return refusal
    take_out_own_frames(error)
    text = "".join(traceback.format_exception(error))
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as in_hook:
        print("Error in sys.excepthook:", file=sys.stderr)
        if in_hook.__context__ is error:
            in_hook.__context__ = None  # python calls the hook outside of any handler
        take_out_own_frames(in_hook)
        both = "".join(traceback.format_exception(in_hook)) + "\nOriginal exception was:\n" + text
        print(redacted(both), file=sys.stderr, end="")
    summary = "".join(traceback.format_exception_only(error)).strip()
    status = INTERRUPTED_STATUS if isinstance(error, KeyboardInterrupt) else 1
    return ScriptFailure(error=summary, traceback=text, exit_status=status)


def print_refusal(error: BaseException, refusal: ScriptFailure) -> None:
    """One line on stderr instead of a traceback: the place in the script, and what was refused."""
    print(f"{_place_of(error)}: {refusal.error} {refusal.next_step}".rstrip(), file=sys.stderr)


def _place_of(error: BaseException) -> str:
    """The last line of the script itself that led to an error, as ``FILE, line N``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "streamstate"


def take_out_own_frames(error: BaseException) -> None:
    """Remove the frames of this package from the tracebacks of an exception and of its causes.

    With them those of Python's import system beside them: Python takes these out itself where the loader is its own.
    """
    for part in origins_of(error):
        part.__traceback__ = _without_own_frames(part.__traceback__)


def origins_of(error: BaseException) -> list[BaseException]:
    """The exception, its causes, its contexts and the members of groups, each once."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in found:
            continue
        found[id(current)] = current
        waiting += [current.__cause__, current.__context__]
        waiting += getattr(current, "exceptions", ()) if isinstance(current, _GROUP) else ()
    return list(found.values())


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    frames: list[types.TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept: list[types.TracebackType] = []
    for is_machinery, run in itertools.groupby(frames, _is_machinery):
        of_run = list(run)
        kept += [] if is_machinery and any(map(_is_own, of_run)) else of_run
    rebuilt: types.TracebackType | None = None
    for part in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return rebuilt


def _is_machinery(trace: types.TracebackType) -> bool:
    return _is_own(trace) or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")


def _is_own(trace: types.TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE + os.sep)


def join_threads() -> None:
    """Wait for the script's non-daemon threads, as python does before it exits."""
    while others := [thread for thread in script_threads() if not thread.daemon]:
        _shut_down_pools(others)
        for thread in others:
            thread.join()


def _shut_down_pools(threads: Sequence[threading.Thread]) -> None:
    """Let the workers among these threads end after their last work. Python does it for all pools at once, but those of
    this package still have work."""
    for thread in threads:
        arguments = getattr(thread, "_args", ())
        pool = arguments[0]() if arguments and isinstance(arguments[0], weakref.ref) else None
        if isinstance(pool, ThreadPoolExecutor):
            pool.shutdown(wait=False)
