"""The process that watches every stream of a home: which stream is looked at when, and what is reported.

A stream whose driver runs on this machine costs no call to the store between its looks: the launcher is asked about
its process. Quiet streams are looked at by one read of the register, and only a register that has changed, or a driver
that has ended, by more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass as mutable_dataclass
from dataclasses import field
from datetime import datetime

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored, Unchanged
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import is_stream_id, unexpected
from airflow_streamstate.controller.retention.pruning import AutomaticPruning, Retaining
from airflow_streamstate.controller.supervise.reconcile import Leave, Sight, one_line
from airflow_streamstate.controller.supervise.supervision import Inspection, SilenceWatch, Supervision
from airflow_streamstate.errors import DataError, StillReadingError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LOCAL, LaunchHandle
from airflow_streamstate.launch.processes import this_machine
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.store.base import one_of_many

TICK_SECONDS = 0.2
LIST_SECONDS = 60.0
"""How often the home is listed for streams that are new or gone."""
QUIET_SECONDS = 60.0
RUNNING_SECONDS = 300.0
"""How often the register of a stream is read whose driver runs on this machine."""
WHOLE_SECONDS = 900.0
"""How often such a stream is looked at as a whole: whether a query of it has failed, for one."""
LOOKS_PER_SILENCE = 4
"""How often a stream is looked at as a whole within its ``hung_after_seconds``."""
SPREAD = 0.2
"""The most by which a pause is shorter, so that not all streams are looked at at once."""
SOON_SECONDS = 2.0
PRUNER_SECONDS_AT_THE_END = 10.0
PROCESSES_PER_SECOND = 250
"""The launcher is asked about this many streams in a second; if there are more, about each of them less often."""
_SOON: frozenset[Sight] = frozenset({"launching", "restarting", "recorded"})
_HAS_DRIVER: frozenset[Sight] = frozenset({"up", "degraded", "launching", "ending", "silent"})


@dataclass(frozen=True)
class Line(View):
    """What a watcher reports, once: about a stream, or about the home if ``stream_id`` is ""."""

    at: datetime
    stream_id: str
    sight: str
    text: str


@mutable_dataclass
class _Watched:
    """What is remembered of one stream, in monotonic seconds of this process."""

    control: StreamControl
    signs: Unchanged
    silence: SilenceWatch
    hung_after_seconds: float = 0.0
    version: str = ""
    version_since: float = 0.0
    due_at: float = 0.0
    whole_at: float = 0.0
    handle: LaunchHandle | None = None
    asked_at: float = 0.0
    sight: Sight = "ended"
    said: str = ""
    errors: int = 0
    is_held: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


class Watcher:
    """Watches the streams of one home.

    Args:
        say: gets each line.
        only: watch this stream alone; "" for all.
        trusts_clocks: a backoff has ended by this machine's clock: for single passes, which remember nothing.
        retaining: prunes the streams whose retention is recorded.
    """

    def __init__(
        self,
        context: ControllerContext,
        supervision: Supervision,
        retaining: Retaining,
        say: Callable[[Line], None],
        *,
        host: str | None = None,
        trusts_clocks: bool = False,
    ) -> None:
        self._context = context
        self._home = context.home
        self._clock: Clock = context.clock
        self._supervision = supervision
        self._say = say
        self._host = this_machine().host if host is None else host
        self._trusts_clocks = trusts_clocks
        self._streams: dict[str, _Watched] = {}
        self._listed_at: float | None = None
        self._is_away = False
        self._pruning = AutomaticPruning(context, retaining, self._tell_of_prune)
        self._pruner: threading.Thread | None = None

    def run(self, is_over: Callable[[], bool], tick_seconds: float = TICK_SECONDS) -> None:
        """Watch until ``is_over``, which is asked between two acts; streams are pruned in a separate thread."""
        errors, has_ended = 0, threading.Event()
        try:
            while not is_over():
                try:
                    self.tick(is_over)
                except StreamStateError as error:
                    errors += 1
                    self._away(error)
                    self._sleep(_pause_after(errors), is_over)
                    continue
                errors = 0
                self._prune_on(has_ended.is_set)  # not by ``is_over``, which a triggerer may take back
                self._sleep(tick_seconds, is_over)
        finally:
            has_ended.set()

    def finish_prune(self, at_most_seconds: float = PRUNER_SECONDS_AT_THE_END) -> None:
        """After ``run``: wait for the prune that has started; what is cut short then, the next prune finishes."""
        if self._pruner is not None:
            self._pruner.join(at_most_seconds)

    def prune_once(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """After a ``tick``: prune streams whose retention is recorded, if that is due."""
        self._pruning.once(is_over)

    def _prune_on(self, is_over: Callable[[], bool]) -> None:
        is_on = self._pruner is not None and self._pruner.is_alive()
        if not is_on and self._pruning.has_streams:
            self._pruner = threading.Thread(
                target=self._pruning.run, args=(is_over,), name="streamstate-pruning", daemon=True
            )
            self._pruner.start()

    def _tell_of_prune(self, stream_id: str, sight: str, text: str) -> None:
        self._say(Line(self._clock.now(), stream_id, sight, text))

    def tick(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at every stream that is due.

        Raises:
            StreamStateError: the home does not answer, or is not there.
        """
        now = self._clock.monotonic_seconds()
        if self._listed_at is None or now - self._listed_at >= LIST_SECONDS or self._is_away:
            self._list()
            self._listed_at = now
            self._back()
        for stream_id, watched in list(self._streams.items()):
            if is_over():
                return
            self._watch(stream_id, watched)

    @property
    def sights(self) -> dict[str, Sight]:
        """What was last seen of each stream."""
        return {stream_id: watched.sight for stream_id, watched in self._streams.items() if watched.version}

    def _sleep(self, seconds: float, is_over: Callable[[], bool]) -> None:
        until = self._clock.monotonic_seconds() + seconds
        while not is_over() and (left := until - self._clock.monotonic_seconds()) > 0:
            self._clock.sleep(min(left, TICK_SECONDS))

    def _list(self) -> None:
        self._home.presence.need_readable()
        names = [name for name in self._home.home.list_folders("") if is_stream_id(name)]
        if not names:
            self._home.presence.need()
        for name in sorted(set(self._streams) - set(names)):
            del self._streams[name]
            self._pruning.forget(name)
        for name in names:
            if name not in self._streams:
                self._streams[name] = _Watched(
                    self._home.control(name), Unchanged(self._clock), SilenceWatch(self._clock)
                )

    def _is_seen_to_end(self, watched: _Watched, now: float) -> bool:
        """As ``_has_ended``, asked as often as the number of streams allows."""
        if now - watched.asked_at < len(self._streams) / PROCESSES_PER_SECOND - TICK_SECONDS / 2:
            return False
        watched.asked_at = now
        return self._has_ended(watched)

    def _has_ended(self, watched: _Watched) -> bool:
        """Whether the driver of a stream that ran on this machine does not any more."""
        if watched.handle is None or watched.handle.launcher != LOCAL or watched.sight not in _HAS_DRIVER:
            return False
        return self._context.observer.status(watched.handle).has_ended

    def _watch(self, stream_id: str, watched: _Watched) -> None:
        """Look at a stream and act, where it is due. Raises StreamStateError where the home does not answer."""
        now = self._clock.monotonic_seconds()
        try:
            if now < watched.due_at and not self._is_seen_to_end(watched, now):
                return
            left = self._look_of_many(watched)
            watched.errors = 0
            watched.sight = watched.sight if left is None else left.sight
            pause_seconds = self._pause(watched, left)
        except StillReadingError as error:
            pause_seconds = 0.0
            left = Leave("unreadable", one_line(str(error), watched.secrets))
        except Exception as error:  # the other streams are watched on
            text = f"{unexpected(error)}: {error}"
            if isinstance(error, StreamStateError):
                self._home.is_there()  # raises where it is the home that does not answer
                text = str(error)
            watched.errors += 1
            sight: Sight = "unreadable" if isinstance(error, DataError) else "failed"
            watched.sight, pause_seconds = sight, _pause_after(watched.errors)
            left = Leave(sight, one_line(f"nothing was done, for now: {text}", watched.secrets))
        if left is not None:
            self._tell(stream_id, watched, left)
        watched.due_at = self._clock.monotonic_seconds() + pause_seconds

    def _look_of_many(self, watched: _Watched) -> Leave | None:
        """As ``_look``, for a short time. A single pass, which has no next poll, reads on at once."""
        while True:
            try:
                with one_of_many():
                    return self._look(watched)
            except StillReadingError:
                watched.sight = "unreadable"  # so the next poll is a complete one
                if not self._trusts_clocks:
                    raise

    def _look(self, watched: _Watched) -> Leave | None:
        """Look at a stream and act; None where nothing can have changed, or it was never deployed."""
        now = self._clock.monotonic_seconds()
        stored = watched.control.register_or_lost()
        if stored is None or stored.value.deployment_id is None:
            return None
        self._pruning.notice(watched.control.stream_id, stored.value)
        watched.is_held = stored.value.upgrade_id is not None
        is_same = stored.version == watched.version
        if not is_same:
            watched.version, watched.version_since, watched.handle = stored.version, now, None
        elif self._is_quiet(watched) and not self._is_whole_due(watched, now):
            return None
        waited = now - watched.version_since
        record = stored.value.restarts
        if record is not None and (self._trusts_clocks or record.recorded_on == self._host):
            waited = max(waited, (self._clock.now() - record.recorded_at).total_seconds())
        look = self._looked(watched, stored, waited)
        if self._trusts_clocks and look.seen.state == "silent":
            look = self._seen_to_be_silent(watched, stored, waited, look)
        policy = stored.value.restart_policy
        watched.handle, watched.secrets = look.seen.handle, look.observed.secrets
        watched.hung_after_seconds = policy.hung_after_seconds if policy.on_failure == "restart" else 0.0
        watched.whole_at = now + (1 - SPREAD) * _whole_seconds(watched)
        return self._supervision.act(look)

    def _looked(self, watched: _Watched, stored: Stored[StreamRegister], waited: float) -> Inspection:
        signs = None if self._trusts_clocks else watched.signs
        return self._supervision.look(
            watched.control,
            stored,
            waited_seconds=waited,
            host=self._host,
            signs=signs,
            silence=watched.silence,
        )

    def _seen_to_be_silent(
        self, watched: _Watched, stored: Stored[StreamRegister], waited: float, look: Inspection
    ) -> Inspection:
        """For a single pass, which remembers no poll: poll on for as long as the driver of a stream has to be seen
        silent, if the clocks show that it has been silent long enough to be ended."""
        settings, policy = look.seen.spec.version.settings, stored.value.restart_policy
        until = self._clock.monotonic_seconds() + 2 * settings.lost_after_seconds + SOON_SECONDS
        is_due = policy.on_failure == "restart" and 0 < policy.hung_after_seconds <= (
            look.seen.heartbeat_age_seconds or 0.0
        )
        while is_due and look.seen.state == "silent" and self._clock.monotonic_seconds() < until:
            self._clock.sleep(min(SOON_SECONDS, settings.heartbeat_seconds))
            look = self._looked(watched, stored, waited)
            is_due = isinstance(look.action, Leave) and not look.observed.order and not look.observed.owner
        return look

    def _is_quiet(self, watched: _Watched) -> bool:
        """Whether only a write of the register, or the end of its driver here, changes what must be done; not while an
        upgrade holds the stream, whose owner may vanish."""
        if watched.is_held:
            return False
        if watched.sight in ("ended", "gave_up") or (watched.sight == "failed" and not watched.errors):
            return True
        return watched.sight == "up" and watched.handle is not None and not self._is_elsewhere(watched.handle)

    def _is_whole_due(self, watched: _Watched, now: float) -> bool:
        return watched.sight == "up" and (now >= watched.whole_at or self._has_ended(watched))

    def _is_elsewhere(self, handle: LaunchHandle) -> bool:
        return handle.launcher != LOCAL or self._context.observer.status(handle).state == "unknown"

    def _pause(self, watched: _Watched, left: Leave | None) -> float:
        if left is not None and left.due_seconds is not None:
            return min(left.due_seconds, QUIET_SECONDS)
        if watched.sight in _SOON:
            return SOON_SECONDS
        spread = 1 - SPREAD * self._clock.jitter()
        if self._is_quiet(watched) and watched.sight == "up":
            return min(RUNNING_SECONDS, _whole_seconds(watched)) * spread
        return QUIET_SECONDS * spread

    def _tell(self, stream_id: str, watched: _Watched, left: Leave) -> None:
        text = f"{left.sight}: {left.text}"
        if text != watched.said:
            watched.said = text
            self._say(Line(self._clock.now(), stream_id, left.sight, left.text))

    def _away(self, error: StreamStateError) -> None:
        if not self._is_away:
            self._is_away = True
            text = one_line(f"it is asked again until it answers: {error}", ())
            self._say(Line(self._clock.now(), "", "away", text))

    def _back(self) -> None:
        if self._is_away:
            self._is_away = False
            self._say(Line(self._clock.now(), "", "back", "the home answers again"))


def _whole_seconds(watched: _Watched) -> float:
    """How often a stream is looked at as a whole that runs on this machine: its heartbeat is read only then."""
    hung_after_seconds = watched.hung_after_seconds
    return min(WHOLE_SECONDS, hung_after_seconds / LOOKS_PER_SILENCE) if hung_after_seconds else WHOLE_SECONDS


def _pause_after(errors: int) -> float:
    """Seconds until what did not answer is asked again: 1, 2, 4 … 60."""
    return min(2.0 ** min(errors - 1, 16), QUIET_SECONDS)
