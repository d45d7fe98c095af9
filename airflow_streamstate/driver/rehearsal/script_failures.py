"""Where a function of the script failed, with the values that it had there, and a debugger at that place."""

from __future__ import annotations

import bdb
import io
import os
import pdb
import re
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.redaction import HIDDEN, is_secret_name, redact_uri

DEBUGGER_VARIABLE = "STREAMSTATE_DEBUGGER"
"""Names the socket of a debugger to Spark's Python workers."""
MARK = "values where it failed: "
MOST_VALUES = 12
MOST_CHARACTERS = 120
MOST_DEPTH = 3
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}")}
_NAMED_VALUE = re.compile(
    r"""(?P<name>\w{1,100})=('(\\.|[^'\\])*'|"(\\.|[^"\\])*"|[^,)\s]+)"""
)  # as a data class has it
_OWN_FOLDER = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}pyspark.zip{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = str(Path(os.__file__).parent) + os.sep


def values_at(trace: TracebackType | None) -> str:
    """The innermost place of a traceback in code that is not a library's, and the values there; "" if not found."""
    own = [(frame, line) for frame, line in traceback.walk_tb(trace) if _is_of_user(frame)]
    if not own:
        return ""
    frame, line = own[-1]
    code = frame.f_code
    return f"{Path(code.co_filename).name}, line {line}, in {code.co_name}: {_values(frame)}"


def _is_of_user(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    is_library = any(part in name for part in _LIBRARIES)
    return not (is_library or name.startswith((_STANDARD, _OWN_FOLDER, "<frozen", *_spark_folders())))


def _spark_folders() -> Iterator[str]:
    """Where the imported pyspark and py4j are: of a distribution of Spark, in no folder of packages."""
    for name in ("pyspark", "py4j"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            yield str(Path(file).parent) + os.sep


def _values(frame: FrameType) -> str:
    """Arguments first, then the other local names."""
    code = frame.f_code
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = [*given, *(name for name in frame.f_locals if name not in given)]
    found = {
        name: frame.f_locals[name]
        for name in names
        if name in frame.f_locals and not isinstance(frame.f_locals[name], (ModuleType, FunctionType, type))
    }
    if code.co_name == "<module>":
        found = {name: value for name, value in found.items() if not name.startswith("__")}
    shown = [
        f"{name}={HIDDEN if is_secret_name(name) else _shown(value)}"
        for name, value in list(found.items())[:MOST_VALUES]
    ]
    return ", ".join((*shown, "…") if len(found) > MOST_VALUES else shown) or "no values"


def _shown(value: object, depth: int = 0) -> str:
    """A value in a line of bounded length. Nothing is cut in two: half of a secret would not be found and hidden."""
    if isinstance(value, (str, bytes)) and len(value) > MOST_CHARACTERS:
        return f"<{type(value).__name__} of {len(value)}>"
    try:
        if type(value) in _BRACKETS or _is_row(value):
            return _with_parts(value, depth)
        text = " ".join(repr(value).splitlines())
    except Exception as error:
        return f"<{type(error).__name__} in its repr>"
    text = redact_uri(_NAMED_VALUE.sub(_without_secret, text))
    return text if len(text) <= MOST_CHARACTERS else f"<{type(value).__name__} of {len(text)} characters>"


def _with_parts(value: Any, depth: int) -> str:
    """A container with as many of its parts as find room."""
    if not value:
        return repr(value)
    if _is_row(value):
        opening, closing = f"{type(value).__name__}(", ")"
    else:
        opening, closing = _BRACKETS[type(value)]
    if depth == MOST_DEPTH:
        return f"{opening}…{closing}"
    parts: list[str] = []
    room = MOST_CHARACTERS
    for part in _parts(value, depth + 1):
        room -= len(part) + 2
        if room < 0:
            parts.append("…")
            break
        parts.append(part)
    ends = ",)" if type(value) is tuple and len(parts) == 1 else closing
    return f"{opening}{', '.join(parts)}{ends}"


def _parts(value: Any, depth: int) -> Iterator[str]:
    if _is_row(value):
        names = getattr(value, "__fields__", None) or value._fields
        for name, one in zipped(names, value):
            yield f"{name}={HIDDEN if is_secret_name(str(name)) else _shown(one, depth)}"
    elif isinstance(value, dict):
        for name, one in value.items():
            is_secret = isinstance(name, str) and is_secret_name(name)
            yield f"{_shown(name, depth)}: {repr(HIDDEN) if is_secret else _shown(one, depth)}"
    else:
        yield from (_shown(one, depth) for one in value)


def _is_row(value: object) -> bool:
    """Whether it is a tuple with names: a row of Spark, or a named tuple."""
    return isinstance(value, tuple) and bool(getattr(value, "__fields__", None) or getattr(value, "_fields", None))


def _without_secret(found: re.Match[str]) -> str:
    return f"{found['name']}={HIDDEN}" if is_secret_name(found["name"]) else found[0]


def without_values(text: str) -> tuple[str, str]:
    """The text of an error without the values that a worker put into it, and these values ("" without any)."""
    lines = text.splitlines()
    marked = [line.strip().removeprefix(MARK) for line in lines if line.strip().startswith(MARK)]
    if not marked:
        return text, ""
    return "\n".join(line for line in lines if not line.strip().startswith(MARK)), marked[0]


class SocketDebugger(pdb.Pdb):
    """pdb whose terminal is at the other end of a Unix socket, connected while a person looks: from a stop until ``c``,
    ``q`` or the end of what they step through. The next stop connects again; if nothing listens, the script continues.
    """

    def __init__(self, path: str) -> None:
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True)
        self.use_rawinput = False
        self._path = path
        self._socket: socket.socket | None = None
        self._goes_on = False
        self._turn = threading.RLock()  # one thread after the other

    @property
    def is_open(self) -> bool:
        """Whether a person looks."""
        return self._socket is not None

    def post_mortem(self, error: Exception) -> None:
        """Let a person look at where an error was raised, until they continue."""
        with self._turn:
            sys.settrace(None)  # what they set before has ended with the error
            self.reset()
            self._show(
                None,
                error.__traceback__,
                f"streamstate: {''.join(traceback.format_exception_only(type(error), error)).strip()}\n"
                "streamstate: this is where it was raised; q continues with the replay\n",
            )
            self.close()

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:  # the base class names it so
        with self._turn:
            self._show(frame, traceback, "")

    def _show(self, frame: FrameType | None, trace: Any, words: str) -> None:
        self._goes_on = False
        try:
            self._open()
            self.stdout.write(words)
            super().interaction(frame, trace)
        except (OSError, ValueError):  # the terminal is gone
            self.clear_all_breaks()
            self.set_continue()
        if self._goes_on:
            self.close()

    def set_continue(self) -> None:
        super().set_continue()
        self._goes_on = True

    def set_quit(self) -> None:
        super().set_quit()
        self._goes_on = True

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        found = super().dispatch_return(frame, arg)
        if frame.f_back is None and self._turn.acquire(blocking=False):  # nothing is left to step through
            self.close()
            self._turn.release()
        return found

    def _open(self) -> None:
        if self._socket is not None:
            return
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(self._path)
        except OSError:
            connected.close()
            raise
        self._socket = connected
        # Two: a text file that is read and written forgets what it has read ahead.
        self.stdin = connected.makefile("r", encoding="utf-8", errors="replace")
        self.stdout = connected.makefile("w", encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Give the terminal back."""
        if self._socket is None:
            return
        for file in (self.stdout, self.stdin):
            with suppress(OSError, ValueError):  # its output cannot be sent any more
                file.close()
        self.stdin, self.stdout = io.StringIO(), io.StringIO()
        self._socket.close()
        self._socket = None


_debuggers: dict[str, SocketDebugger] = {}


def _debugger(path: str) -> SocketDebugger:
    """The one of this process."""
    return _debuggers.get(path) or _debuggers.setdefault(path, SocketDebugger(path))


def is_debugging() -> bool:
    """Whether a person looks at this process right now."""
    return any(debugger.is_open for debugger in _debuggers.values())


def debug_failure(path: str, error: BaseException) -> None:
    """Let a person look at where an error was raised, until they continue; nothing where no terminal listens."""
    if isinstance(error, Exception) and not isinstance(error, bdb.BdbQuit):
        _debugger(path).post_mortem(error)


def debug_breakpoints(path: str) -> None:
    """Let ``breakpoint()`` of this process open the debugger; c continues."""

    def hook(*_arguments: object, **_named: object) -> None:
        _debugger(path).set_trace(sys._getframe(1))

    sys.breakpointhook = hook
