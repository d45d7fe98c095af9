"""Where a function of the script failed, with the values that it had there, and a debugger at that place.

The driver uses this, and so do Spark's Python workers in a replay (``driver.spark.python_daemon``).
"""

from __future__ import annotations

import bdb
import os
import pdb
import reprlib
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType, FunctionType, ModuleType, TracebackType

DEBUGGER_VARIABLE = "STREAMSTATE_DEBUGGER"
"""Names the socket of a debugger to Spark's Python workers."""
MARK = "values where it failed: "
MOST_VALUES = 12
MOST_CHARACTERS = 120
_OWN_FOLDER = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}pyspark.zip{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = str(Path(os.__file__).parent) + os.sep


def values_at(trace: TracebackType | None) -> str:
    """The innermost place of a traceback in code that is not a library's, and the values there; "" for none."""
    own = [(frame, line) for frame, line in traceback.walk_tb(trace) if _is_of_user(frame)]
    if not own:
        return ""
    frame, line = own[-1]
    code = frame.f_code
    return f"{Path(code.co_filename).name}, line {line}, in {code.co_name}: {_values(frame)}"


def _is_of_user(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    is_library = any(part in name for part in _LIBRARIES)
    return not (is_library or name.startswith((_STANDARD, _OWN_FOLDER, "<frozen")))


def _values(frame: FrameType) -> str:
    """Arguments first, then the other local names."""
    code = frame.f_code
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = [*given, *(name for name in frame.f_locals if name not in given)]
    found = {
        name: frame.f_locals[name]
        for name in names
        if name in frame.f_locals and not isinstance(frame.f_locals[name], ModuleType | FunctionType | type)
    }
    if code.co_name == "<module>":
        found = {name: value for name, value in found.items() if not name.startswith("__")}
    shown = [f"{name}={_shown(value)}" for name, value in list(found.items())[:MOST_VALUES]]
    return ", ".join((*shown, "…") if len(found) > MOST_VALUES else shown) or "no values"


def _shown(value: object) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = MOST_CHARACTERS
    try:
        text = " ".join(short.repr(value).split())
    except Exception as error:
        return f"<{type(error).__name__} in its repr>"
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def told_apart(text: str) -> tuple[str, str]:
    """The text of an error without the values that a worker put into it, and these; "" for none."""
    lines = text.splitlines()
    marked = [line.strip().removeprefix(MARK) for line in lines if line.strip().startswith(MARK)]
    if not marked:
        return text, ""
    return "\n".join(line for line in lines if not line.strip().startswith(MARK)), marked[0]


class SocketDebugger(pdb.Pdb):
    """pdb whose terminal is at the other end of a Unix socket.

    Raises:
        OSError: nothing listens there.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        # Two: a text file that is read and written forgets what it has read ahead.
        self._typed = self._socket.makefile("r", encoding="utf-8", errors="replace")
        self._file = self._socket.makefile("w", encoding="utf-8", errors="replace")
        super().__init__(stdin=self._typed, stdout=self._file, nosigint=True)
        self.use_rawinput = False
        _OPEN.add(self)

    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        self._file.write(f"{text}\n")

    def set_continue(self) -> None:
        super().set_continue()
        if not self.breaks:
            self.close()

    def set_quit(self) -> None:
        super().set_quit()
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        for file in (self._file, self._typed):
            with suppress(OSError, ValueError):  # what it has to say cannot be sent any more
                file.close()
        self._socket.close()
        _OPEN.discard(self)


_OPEN: set[SocketDebugger] = set()


def is_debugging() -> bool:
    """Whether a person looks at this process right now."""
    return bool(_OPEN)


def debug_failure(path: str, error: BaseException) -> None:
    """Let a person look at where an error was raised, until they quit; nothing where no terminal listens."""
    if not isinstance(error, Exception) or isinstance(error, bdb.BdbQuit):
        return
    with suppress(OSError, ValueError):  # the terminal is gone
        debugger = SocketDebugger(path)
        debugger.say(f"streamstate: {''.join(traceback.format_exception_only(error)).strip()}")
        debugger.say("streamstate: this is where it was raised; q goes on with the replay")
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
        debugger.close()


def debug_breakpoints(path: str) -> None:
    """Let ``breakpoint()`` of this process open the debugger; c goes on."""

    def hook(*_arguments: object, **_named: object) -> None:
        with suppress(OSError):
            SocketDebugger(path).set_trace(sys._getframe(1))

    sys.breakpointhook = hook
