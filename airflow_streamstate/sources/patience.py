"""Asks a source that may fail for a while: again after a pause, until it has failed for ``failAfterSeconds``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError, SourceError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
_DEFECTS = (TypeError, AttributeError, NameError, NotImplementedError, ImportError)
"""What a program raises that is wrong: asking again is no use."""


@dataclass
class _Trouble:
    """A source or a part that failed; it is asked again after a pause.

    Attributes:
        doing: what failed: only when that works again the trouble is over.
    """

    doing: str
    since_seconds: float
    next_seconds: float
    pause_seconds: float = FIRST_PAUSE_SECONDS


class Patience:
    """Asks one source, in one process.

    Args:
        source: its format.
        say: tells people one line.
    """

    def __init__(self, source: str, clock: Clock, fail_after_seconds: float, say: Callable[[str], None]) -> None:
        self._source = source
        self._clock = clock
        self._fail_after_seconds = fail_after_seconds
        self._say = say
        self._trouble: dict[str, _Trouble] = {}

    def ask(
        self, name: str, what: str, act: Callable[[], Any], *, waits: bool, failed: Callable[[], None] | None = None
    ) -> Any:
        """The answer of the source.

        Args:
            name: of the part; "" for the source.
            waits: for the answer; else None is returned while it fails.
            failed: done at each failure.

        Raises:
            SourceError: its program is wrong, or it has failed for too long.
        """
        while True:
            now_seconds = self._clock.monotonic_seconds()
            trouble = self._trouble.get(name)
            if trouble is not None and now_seconds < trouble.next_seconds:
                if not waits:
                    return None
                self._clock.sleep(trouble.next_seconds - now_seconds)
            try:
                answer = act()
            except InvalidRequestError:
                raise
            except _DEFECTS as error:
                raise SourceError(
                    "the program of this source is wrong",
                    source=self._source,
                    part=name or "all",
                    doing=what,
                    error=f"{type(error).__name__}: {error}"[:500],
                ) from error
            except Exception as error:
                if failed is not None:
                    failed()
                self._note(name, what, error)
            else:
                if trouble is not None and trouble.doing == what:
                    del self._trouble[name]
                    self._say(f"{what} of {name or 'the source'} works again")
                return answer

    def _note(self, name: str, what: str, error: Exception) -> None:
        now_seconds = self._clock.monotonic_seconds()
        trouble = self._trouble.setdefault(name, _Trouble(what, now_seconds, now_seconds))
        words = f"{type(error).__name__}: {error}"[:500]
        if now_seconds - trouble.since_seconds >= self._fail_after_seconds:
            raise SourceError(
                "this source has failed for longer than it may",
                source=self._source,
                part=name or "all",
                doing=what,
                for_seconds=round(now_seconds - trouble.since_seconds, 1),
                error=words,
                next_step="Bring it back and resume: nothing was given twice or passed over.",
            ) from error
        self._say(f"{what} of {name or 'the source'} failed and is tried again: {words}")
        trouble.next_seconds = now_seconds + trouble.pause_seconds
        trouble.pause_seconds = min(2 * trouble.pause_seconds, LONGEST_PAUSE_SECONDS)
