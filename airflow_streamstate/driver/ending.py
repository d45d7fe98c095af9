"""Ends a run of a script from another thread, as if each of its threads had called ``sys.exit()``.

A rehearsal ends so a script that waits for ever; its process can then run the script again.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

END_SIGNAL = signal.SIGRTMIN + 7 if sys.platform == "linux" else signal.SIGUSR2
"""Wakes the main thread from a sleep; a number that scripts and Spark do not use."""
OWN_THREADS = "streamstate"
"""How the names of this package's threads begin."""
LEFT_SECONDS = 1.0
"""How long one daemon thread is waited for; it ends later, where it sleeps."""
_IN_A_CALL = "py4j"


class ScriptEnd:
    """Ends one run of a script after another. Made in the main thread, which runs the scripts."""

    def __init__(self) -> None:
        self._older: set[threading.Thread] = set()
        self._namespace: dict[str, Any] | None = None
        signal.signal(END_SIGNAL, self._leave_lines)

    @contextmanager
    def run(self, namespace: dict[str, Any]) -> Iterator[None]:
        """Around a run of the script with these global names: its lines, and the wait for its threads."""
        self._older, self._namespace = set(threading.enumerate()), namespace
        try:
            yield
        finally:
            self._namespace = None

    def ask(self) -> None:
        """Raise SystemExit in the threads of the run; nothing between two runs.

        The main thread gets it at once, even while it sleeps; another thread when it runs Python code next. A script
        may catch it, so ask again while the run is not over.
        """
        main = threading.main_thread().ident
        if self._namespace is not None and main is not None:
            signal.pthread_kill(main, END_SIGNAL)
        for thread in self.threads():
            if thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

    def leave_no_thread(self) -> None:
        """Ask the daemon threads of the run to end, and wait a little: another run of the script may follow."""
        for thread in self.threads():
            self.ask()
            thread.join(LEFT_SECONDS)

    def threads(self) -> list[threading.Thread]:
        """The living threads of the run beside the main one: those that python waits for before it exits, and daemon
        threads that run functions of the script itself."""
        if self._namespace is None:
            return []
        return [thread for thread in script_threads() if thread not in self._older and self._is_of_run(thread)]

    def _is_of_run(self, thread: threading.Thread) -> bool:
        return not thread.daemon or self._runs_lines_in(_frame_of(thread))

    def _leave_lines(self, _number: int, frame: types.FrameType | None) -> None:
        own = next((each for each in _frames(frame) if each.f_globals is self._namespace), None)
        if own is None:
            return
        if any(str(each.f_globals.get("__name__", "")).startswith(_IN_A_CALL) for each in _frames(frame)):
            # The answer of the JVM would be taken for that of the main thread's next call: end it behind this one.
            own.f_trace = _leave_line
            sys.settrace(lambda *_: None)
            return
        raise SystemExit(0)

    def _runs_lines_in(self, frame: types.FrameType | None) -> bool:
        """Whether functions of the script itself are running, or its last line has not been reached."""
        return self._namespace is not None and any(each.f_globals is self._namespace for each in _frames(frame))


def script_threads() -> list[threading.Thread]:
    """The living threads that are neither the main one, nor the current one, nor this package's."""
    own = (threading.current_thread(), threading.main_thread())
    return [thread for thread in threading.enumerate() if thread not in own and not thread.name.startswith(OWN_THREADS)]


def _leave_line(_frame: types.FrameType, _event: str, _argument: object) -> None:
    sys.settrace(None)
    raise SystemExit(0)


def _frame_of(thread: threading.Thread) -> types.FrameType | None:
    return None if thread.ident is None else sys._current_frames().get(thread.ident)


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
