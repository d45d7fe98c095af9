"""Running the user's script as ``python script.py`` would: the same ``__main__``, the same words when it fails.

Not ``runpy``: that puts the old ``__main__`` back after the last line, and a thread that outlives it then cannot pickle
its classes. Ours stays for good.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path

from airflow_streamstate.driver.shutdown.finishing import ScriptFailure, refusal_in

_PACKAGE = str(Path(__file__).resolve().parents[1])
_STARTERS: list[types.ModuleType | None] = []
MISSING_STATUS = 2
INTERRUPTED_STATUS = 130


def run_script(
    application: str,
    arguments: Sequence[str],
    before_report: Callable[[BaseException], None] = lambda _error: None,
    redacted: Callable[[str], str] = lambda text: text,
) -> ScriptFailure | None:
    """Run a script to the end of its last line and of its threads, and tell how it failed.

    What python prints for a failure is printed already.

    Args:
        application: the script's path.
        arguments: what it finds in ``sys.argv[1:]``.
        before_report: is given an error before anything is printed of it; need not come back.
        redacted: gives a text without secrets; what Python's own hook prints, ``uncaught`` has seen to.

    Returns:
        None where python would exit with 0.
    """
    try:
        source = Path(application).read_bytes()
    except OSError as error:
        text = f"can't open file '{application}': [Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: {text}", file=sys.stderr)
        return ScriptFailure(error=text, traceback="", exit_status=MISSING_STATUS)
    module = _become_main(application, arguments)
    failure: ScriptFailure | None = None
    try:
        # dont_inherit: the `from __future__` of this very file is not the script's.
        code = compile(source, application, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102  running the script is the purpose
    except SystemExit as error:
        failure = _exit_failure(error, redacted)
    except BaseException as error:
        before_report(error)
        failure = _print_failure(error, redacted)
    join_threads()
    return failure


def keep_surroundings() -> Callable[[], None]:
    """What a script may change of its process without noticing; the answer puts it back before the script runs again.

    The current folder, and the variables of the environment but for Spark's own: a context that stays needs them.
    """
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
    # The module that started us must stay alive: its globals are those of running functions.
    _STARTERS.append(sys.modules.get("__main__"))
    sys.modules["__main__"] = module
    sys.argv = [application, *arguments]
    sys.path[0] = str(Path(application).resolve().parent)
    return module


def _exit_failure(error: SystemExit, redacted: Callable[[str], str]) -> ScriptFailure | None:
    """What ``sys.exit`` means: None and 0 are success, a number is the status, anything else is said on stderr."""
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
            in_hook.__context__ = None  # python calls a hook when nothing is being handled any more
        take_out_own_frames(in_hook)
        both = "".join(traceback.format_exception(in_hook)) + "\nOriginal exception was:\n" + text
        print(redacted(both), file=sys.stderr, end="")
    summary = "".join(traceback.format_exception_only(error)).strip()
    status = INTERRUPTED_STATUS if isinstance(error, KeyboardInterrupt) else 1
    return ScriptFailure(error=summary, traceback=text, exit_status=status)


def print_refusal(error: BaseException, refusal: ScriptFailure) -> None:
    """One line on stderr in the place of a traceback: where in the script, and what was refused."""
    print(f"{_place_of(error)}: {refusal.error}", file=sys.stderr)


def _place_of(error: BaseException) -> str:
    """The last line of the script's own that led to an error, as ``FILE, line N``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "streamstate"


def take_out_own_frames(error: BaseException) -> None:
    """Take the frames of this package out of the tracebacks of an exception and of what it came from."""
    for part in origins_of(error):
        part.__traceback__ = _without_own_frames(part.__traceback__)


def origins_of(error: BaseException) -> list[BaseException]:
    """The exception, and all that it came from or holds, each once."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in found:
            continue
        found[id(current)] = current
        waiting += [current.__cause__, current.__context__]
        waiting += current.exceptions if isinstance(current, BaseExceptionGroup) else []
    return list(found.values())


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept: list[types.TracebackType] = []
    while trace is not None:
        if not _is_own(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    rebuilt: types.TracebackType | None = None
    for part in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return rebuilt


def _is_own(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE + os.sep)


def join_threads() -> None:
    """Wait for the script's threads that are no daemons, as python does before it exits."""
    while True:
        others = [
            thread
            for thread in threading.enumerate()
            if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread())
        ]
        if not others:
            return
        for thread in others:
            thread.join()
