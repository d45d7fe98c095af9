"""Pruning that no caller asks for: watchers prune the streams whose retention is recorded.

A look is one read of a stream's retention register, once an hour. A prune follows where a snapshot is new since the
last one, and once a day for what has grown old since. All looks and prunes of a watcher come one after the other, with
pauses between them, so that a thousand streams cost few calls of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.retention import Retention
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.retention.pruning import Pruned, Retaining
from airflow_streamstate.errors import StreamNotFoundError, StreamStateError
from airflow_streamstate.protocol.redaction import shortened
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.retention import RetentionPolicy, RetentionRegister

LOOK_SECONDS = 3_600.0
"""How often a stream is looked at, and pruned at most."""
WHOLE_SECONDS = 86_400.0
"""How often it is pruned where no snapshot is new."""
AWAY_SECONDS = 60.0
PAUSE_SECONDS = 3.0
"""After a look."""
PRUNE_PAUSE_SECONDS = 20.0
"""After a prune, which costs about 120 calls of the store for a stream with ten snapshots."""
MOST_AT_ONCE = 20
"""Prunes of a single pass."""
_TICK_SECONDS = 0.2
_MOST_CHARACTERS = 500
Say = Callable[[str, str, str], None]
"""Told a stream, ``pruned`` or ``not_pruned``, and one line about it."""


def is_due(register: RetentionRegister, policy: RetentionPolicy, now_seconds: float) -> bool:
    """Whether a prune by the recorded policy may remove anything that the last one left.

    Args:
        now_seconds: the present, as a POSIX timestamp.
    """
    last = register.last_prune
    if last is None or last.policy != policy:
        return True
    since_seconds = abs(now_seconds - last.at.timestamp())  # the clock of another machine may be ahead for long
    is_new = register.newest_snapshot_id != last.newest_snapshot_id
    return since_seconds >= (LOOK_SECONDS if is_new else WHOLE_SECONDS)


@dataclass
class _Known:
    """What is remembered of a stream with a recorded retention; ``due_at`` in monotonic seconds."""

    policy: RetentionPolicy
    due_at: float
    said: str = ""


class AutomaticPruning:
    """Prunes the streams of a home whose retention is recorded, and no others.

    ``notice`` and ``forget`` may be called in another thread than the rest.
    """

    def __init__(self, context: ControllerContext, retaining: Retaining, say: Say) -> None:
        self._home = context.home
        self._clock: Clock = context.clock
        self._retaining = retaining
        self._say = say
        self._known: dict[str, _Known] = {}
        self._lock = Lock()

    @property
    def has_streams(self) -> bool:
        """Whether the retention of any stream is recorded."""
        return bool(self._known)

    def notice(self, stream_id: str, register: StreamRegister) -> None:
        """Take up what the register of a stream says, which was just read."""
        policy = None if register.retirement is not None else register.retention
        with self._lock:
            known = self._known.get(stream_id)
            if policy is None:
                self._known.pop(stream_id, None)
            elif known is None or known.policy != policy:
                self._known[stream_id] = _Known(policy, self._clock.monotonic_seconds())

    def forget(self, stream_id: str) -> None:
        """The stream is gone."""
        with self._lock:
            self._known.pop(stream_id, None)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Prune until ``is_over``, which is asked between two streams."""
        while not is_over():
            until = self._clock.monotonic_seconds() + self.step()
            while not is_over() and (left := until - self._clock.monotonic_seconds()) > 0:
                self._clock.sleep(min(left, _TICK_SECONDS))

    def once(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at each stream at once, and prune some of those that are due; the next call goes on."""
        left = MOST_AT_ONCE
        for stream_id in sorted(self._known):
            if left == 0 or is_over():
                return
            left -= self._look(stream_id)

    def step(self) -> float:
        """Look at the stream that has been due for longest, if any is; how many seconds to pause then."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            due = min(self._known, key=lambda name: self._known[name].due_at, default=None)
            if due is None or self._known[due].due_at > now:
                return PAUSE_SECONDS
        return PRUNE_PAUSE_SECONDS if self._look(due) else PAUSE_SECONDS

    def _look(self, stream_id: str) -> bool:
        """Look at a stream, and prune it where it is due; whether that cost more than the look."""
        known = self._known.get(stream_id)
        if known is None:
            return False
        known.due_at = self._clock.monotonic_seconds() + LOOK_SECONDS
        try:
            register = Retention(self._home.control(stream_id)).read()
            if not is_due(register, known.policy, self._clock.now().timestamp()):
                return False
            pruned = self._retaining.prune_as_recorded(stream_id)
        except Exception as error:  # the other streams are pruned on
            self._failed(stream_id, known, error)
            return True
        if pruned is None:
            self.forget(stream_id)  # until its register says otherwise
            return False
        self._tell(stream_id, known, pruned)
        return True

    def _failed(self, stream_id: str, known: _Known, error: Exception) -> None:
        if isinstance(error, StreamNotFoundError):
            self.forget(stream_id)
            return
        text = f"it is not pruned, for now: unexpected {type(error).__name__}: {error}"
        if isinstance(error, StreamStateError):
            text = f"it is not pruned, for now: {error}"
            try:
                self._home.is_there()
            except StreamStateError:  # the home does not answer, which the watcher says
                known.due_at = self._clock.monotonic_seconds() + AWAY_SECONDS
                return
        self._tell_once(stream_id, known, text)

    def _tell(self, stream_id: str, known: _Known, pruned: Pruned) -> None:
        removed = [*pruned.removed, *(f"{which} at {one.uri}" for one in pruned.mirrors for which in one.removed)]
        leftovers = len(pruned.leftovers)
        found = [
            *([", ".join(removed)] if removed else []),
            *([f"{leftovers} leftover{'' if leftovers == 1 else 's'} of deployments"] if leftovers else []),
        ]
        if found:
            self._say(stream_id, "pruned", _line(f"removed: {' and '.join(found)}; it {pruned.policy.words}"))
        problems = [f"at {one.uri}: {one.problem}" for one in pruned.mirrors if one.problem]
        self._tell_once(stream_id, known, "; ".join((*pruned.swept.problems, *problems)))

    def _tell_once(self, stream_id: str, known: _Known, text: str) -> None:
        if text and text != known.said:
            self._say(stream_id, "not_pruned", _line(text))
        known.said = text


def _line(text: str) -> str:
    return shortened(text, (), _MOST_CHARACTERS, in_a_line=True)
