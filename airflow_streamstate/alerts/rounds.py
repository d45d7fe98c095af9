"""Rounds of an ``AlertWatch`` in a thread of their own, so that restarts wait for no alert."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_streamstate.alerts.watch import AlertWatch
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.redaction import shortened

ROUND_SECONDS = 60.0
"""How often each stream is looked at."""


class Rounds:
    """Looks at every stream again and again until it is ended.

    Args:
        say: told in one line what went wrong, once for each reason.
    """

    def __init__(self, watch: AlertWatch, say: Callable[[str], None], round_seconds: float = ROUND_SECONDS) -> None:
        self._watch = watch
        self._say = say
        self._round_seconds = round_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="streamstate-alerts", daemon=True)

    def begin(self) -> None:
        """Begin with the first round at once."""
        self._thread.start()

    def end(self, seconds: float = 10.0) -> None:
        """End after the stream that is being looked at, and wait for that so long at most."""
        self._over.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        said = ""
        while not self._over.is_set():
            text = self.once()
            if text and text != said:
                self._say(text)
            said = text
            self._over.wait(self._round_seconds)

    def once(self) -> str:
        """One round; what went wrong, in one line, "" for nothing."""
        try:
            self._watch.look(self._over.is_set)
        except StreamStateError as error:
            return shortened(f"alerts are looked at again later: {error}", (), 500, in_a_line=True)
        except Exception as error:  # a defect at one stream must not end the watch of all
            return shortened(f"alerts: unexpected {type(error).__name__}: {error}", (), 500, in_a_line=True)
        return ""
