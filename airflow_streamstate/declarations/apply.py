"""Makes streams as their files declare: each change a deploy, an upgrade, a resume or a stop."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from airflow_streamstate.clock import Clock
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.wait.condition import UNANSWERED, WaitCondition, only_news
from airflow_streamstate.declarations.diff import (
    Step,
    StreamDifference,
    compare,
    in_one_line,
    refuse_other_format,
    undeclared,
)
from airflow_streamstate.declarations.reader import (
    DeclaredStream,
    deploy_request,
    stream_values,
    upgrade_request,
    upgrade_terms,
)
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeadlineExceededError,
    DeploymentRefusedError,
    InvalidRequestError,
    StreamStateError,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import upgrade_id_for
from airflow_streamstate.protocol.policies import Ownership, RetentionPolicy
from airflow_streamstate.protocol.terms.order import WaveTerms

Target = DeclaredStream | StreamDifference
"""What is made: a stream as its file declares it, or the end of one that no file declares."""
Say = Callable[[str, str], None]
"""Gets a stream and one line about it."""
Result = Literal["done", "unchanged", "refused", "failed", "not begun"]
_MOST_LOOKS = 5
_MOST_TRIES = 1_000


@dataclass(frozen=True)
class Applied(View):
    """What became of one stream.

    Attributes:
        result: ``done``: it is as declared now; ``unchanged``: it was; ``refused``, ``failed``: it runs as before or
            not, as ``reason`` states; ``not begun``: other failures, or a stream that it depends on, held it back.
        upgrade_id: of an upgrade, or "".
    """

    stream_id: str
    step: Step
    result: Result
    reason: str = ""
    deployment_id: str = ""
    upgrade_id: str = ""

    @property
    def is_well(self) -> bool:
        """Whether the stream is as declared."""
        return self.result in ("done", "unchanged")


@dataclass(frozen=True)
class UnderWay:
    """A stream whose change has started, and waits.

    Attributes:
        step: ``continue``: of an upgrade that another declaration, or a person, started, and of a driver that another
            call has launched.
        condition: what it waits for; ``unwell`` for a changed stream that is watched.
        until_at: the end of the wait.
        deployment_id: the deployment that is changed, or started.
        applied: of a stream that is watched: what became of it so far.
    """

    step: Step
    condition: WaitCondition
    until_at: datetime
    deployment_id: str
    applied: Applied | None = None

    @property
    def stream_id(self) -> str:
        return self.condition.stream_id

    @property
    def is_watched(self) -> bool:
        """Whether its change is made, and only its health is watched."""
        return self.applied is not None


@dataclass(frozen=True)
class ApplyStarted:
    """Waves that wait: plain JSON, so that a deferred task can carry it through a database.

    Attributes:
        number: the index of the wave that is under way.
        under_way: its streams that wait.
        applied: what became of its other streams, and of the streams before that are not as declared.
    """

    number: int
    under_way: tuple[UnderWay, ...]
    applied: tuple[Applied, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        found: dict[str, Any] = _BEGUN.dump_python(self, mode="json")
        return found

    @classmethod
    def from_json(cls, raw: object) -> ApplyStarted:
        """The inverse. Raises DataError: it was made by another release."""
        try:
            return _BEGUN.validate_python(raw)
        except ValidationError:
            raise DataError(
                "this is not what a wave waits for", next_step="Clear the task: it finds what is under way by itself."
            ) from None


_BEGUN = TypeAdapter(ApplyStarted)
Wait = Callable[[Controller, UnderWay, Say], Mapping[str, Any] | None]
"""Waits for a condition: what was seen, or None if it is not met yet and the caller must continue later. Raises
DeadlineExceededError after its ``until_at``, and the error of a condition that cannot be met any more."""


def wait_for(
    controller: Controller, waits: UnderWay, say: Say, report: Say = lambda _id, _line: None
) -> Mapping[str, Any]:
    """Wait in this thread; an upgrade is brought to its end.

    Args:
        report: gets what is waited for, whenever there is news.
    """
    condition, stream_id = waits.condition, waits.stream_id
    left_seconds = max((waits.until_at - controller.clock.now()).total_seconds(), 0.0)
    on_progress = only_news(lambda line: report(stream_id, line), controller.clock)
    if condition.wanted != "upgrade":
        return controller.wait(condition, left_seconds, on_progress).need_result()
    controller.upgrades.run(
        stream_id, condition.deployment_id, left_seconds, on_progress, lambda line: say(stream_id, line)
    )
    return {}


@dataclass(frozen=True)
class ApplyTerms(WaveTerms):
    """How a folder is applied.

    Attributes:
        compared: what ``diff`` reported before, by stream: one that would be changed otherwise by now is refused; None:
            each is changed as it differs now.
    """

    compared: Mapping[str, StreamDifference] | None = None


@dataclass
class _Progress:
    """What became of the streams so far."""

    canaries: Set[str]
    is_tried_again: bool = False
    by_stream: dict[str, Applied] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def failures(self) -> int:
        return sum(one.result in ("refused", "failed") for one in self.by_stream.values())

    def add(self, one: Applied) -> None:
        with self.lock:
            self.by_stream[one.stream_id] = one


class Applying:
    """Applies declarations to a home.

    Args:
        new_controller: a controller of the home, one for each thread.
        say: gets each step in one line.
        wait: waits for what has started.
        interrupted: gets the streams that are still under way when this is interrupted, before it waits for them.
    """

    def __init__(
        self,
        new_controller: Callable[[], Controller],
        clock: Clock,
        say: Say = lambda _id, _line: None,
        wait: Wait = wait_for,
        interrupted: Callable[[Sequence[str]], None] = lambda _ids: None,
    ) -> None:
        self._new_controller = new_controller
        self._clock = clock
        self._say = say
        self._wait = wait
        self._interrupted = interrupted

    def apply(self, declared: Sequence[DeclaredStream], terms: ApplyTerms) -> list[Applied]:
        """Make the streams as declared, and wait for it; what became of each, in the order in which they were started.

        Raises:
            HomeFormatError: this version does not read the home.
            InvalidRequestError: the terms contradict each other, or no stream has the canary's label.
            UnavailableError: the home does not answer.
        """
        waves: list[Sequence[Target]] = [*waves_of(declared, terms)]
        if terms.prune:
            pruned = [one for one in undeclared(self._new_controller(), declared) if _is_to_stop(one, terms)]
            waves += [pruned[at : at + terms.wave] for at in range(0, len(pruned), terms.wave)]
        applied, begun = self.apply_waves(waves, terms, len(waves) - 1)
        if begun is not None:
            raise AssertionError("a wait in this thread ended too early")
        return applied

    def apply_waves(
        self,
        waves: Sequence[Sequence[Target]],
        terms: ApplyTerms,
        last: int,
        begun: ApplyStarted | None = None,
        *,
        is_tried_again: bool = False,
    ) -> tuple[list[Applied], ApplyStarted | None]:
        """As ``apply``, up to the wave with the index ``last``: what is done already is found ``unchanged``.

        Args:
            waves: all of them; the streams of the wave ``last`` are watched, too, if another one follows.
            begun: continues with this.
            is_tried_again: a caller before this one may have changed streams of the wave ``last`` since they were
                compared: these are ``done``, once they are well.

        Returns:
            What became of the streams; and what waits, None if everything has ended.
        """
        refuse_other_format(self._new_controller())
        progress = _Progress(_canaries((one for wave in waves for one in wave), terms))
        for one in () if begun is None else begun.applied:
            progress.add(one)
        for number in range(0 if begun is None else begun.number, last + 1):
            is_begun = begun is not None and number == begun.number
            held_back = "" if is_begun else self._held_back(progress, terms)
            if held_back:
                _hold_back(waves[number], held_back, progress)
                continue
            progress.is_tried_again = is_tried_again and number == last
            known = begun.under_way if begun is not None and is_begun else ()
            waiting = self._run_wave(waves[number], terms, progress, known)
            if not waiting and not any(one.is_watched for one in known) and number < len(waves) - 1:
                watched = self._to_watch(waves[number], terms, progress)
                waiting = self._run_wave(waves[number], terms, progress, watched) if watched else []
            if waiting:
                names = {one.stream_id for one in waves[number]}
                kept = [one for name, one in progress.by_stream.items() if name in names or not one.is_well]
                return list(progress.by_stream.values()), ApplyStarted(number, tuple(waiting), tuple(kept))
        return list(progress.by_stream.values()), None

    def _held_back(self, progress: _Progress, terms: ApplyTerms) -> str:
        """Why nothing else is started; "" for no reason."""
        if not all(one.is_well for name, one in progress.by_stream.items() if name in progress.canaries):
            return "a canary is not well"
        most = terms.stop_after_failures
        if most is not None and progress.failures >= most:
            return f"{progress.failures} streams have failed before it"
        return ""

    def _run_wave(
        self, wave: Sequence[Target], terms: ApplyTerms, progress: _Progress, waits: Sequence[UnderWay]
    ) -> list[UnderWay]:
        """Start the streams of a wave, or continue with those that are known to wait; those that wait then."""
        known = {one.stream_id: one for one in waits}
        left = [one for one in wave if one.stream_id in known or one.stream_id not in progress.by_stream]
        waiting = []
        # Watches start and end together.
        workers = len(left) if any(one.is_watched for one in waits) else min(terms.wave, len(left))
        for one in self._in_threads(left, workers, lambda each: self._apply_one(each, terms, progress, known)):
            if isinstance(one, UnderWay):
                waiting.append(one)
            else:
                progress.add(one)
        return waiting

    def _in_threads(
        self, targets: Sequence[Target], workers: int, act: Callable[[Target], Applied | UnderWay]
    ) -> Iterator[Applied | UnderWay]:
        """What ``act`` gives for each, in their order; after an interruption nothing more is started."""
        todo = deque((target, Future[Applied | UnderWay]()) for target in targets)
        futures = {target.stream_id: future for target, future in todo}

        def work() -> None:
            while True:
                try:
                    target, future = todo.popleft()
                except IndexError:
                    return
                future.set_running_or_notify_cancel()
                try:
                    future.set_result(act(target))
                except BaseException as error:
                    future.set_exception(error)

        # Daemons: the end of the process waits for no thread, so that a second interruption leaves at once.
        threads = [threading.Thread(target=work, name=f"apply-{number}", daemon=True) for number in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for future in futures.values():
                yield future.result()
        except BaseException as error:
            todo.clear()
            if isinstance(error, KeyboardInterrupt):
                self._interrupted([name for name, future in futures.items() if future.running()])
            for thread in threads:
                thread.join()
            raise

    def _apply_one(
        self, target: Target, terms: ApplyTerms, progress: _Progress, known: Mapping[str, UnderWay]
    ) -> Applied | UnderWay:
        stream_id = target.stream_id
        if stream_id not in known and (held_back := _held_back_by(target, progress)):
            return Applied(stream_id, "nothing", "not begun", held_back)
        controller = self._new_controller()
        one: _OneStream | _UndeclaredStream
        if isinstance(target, StreamDifference):
            one = _UndeclaredStream(controller, stream_id, terms)
        else:
            one = _OneStream(controller, target, terms, self._say, is_tried_again=progress.is_tried_again)
        last: UnderWay | StreamDifference | None = known.get(stream_id)
        try:
            if isinstance(last, UnderWay):
                made: Applied | UnderWay = last
            else:
                last = one.difference()
                self._say(stream_id, words(last))
                made = one.made(last)
            while isinstance(made, UnderWay):
                last = made
                seen = self._wait(controller, made, self._say)
                if seen is None:
                    return made
                made = one.after(made, seen)
        except StreamStateError as error:
            return _ended_by(error, stream_id, last)
        return made

    def _to_watch(self, wave: Sequence[Target], terms: ApplyTerms, progress: _Progress) -> list[UnderWay]:
        """The changed streams of a wave, which fail if they end or degrade before the next one."""
        if not terms.healthy_for_seconds:
            return []
        until_at = self._clock.now() + timedelta(seconds=terms.healthy_for_seconds)
        done = [progress.by_stream[one.stream_id] for one in wave]
        return [
            UnderWay(
                one.step,
                WaitCondition("unwell", one.stream_id, one.deployment_id),
                until_at,
                one.deployment_id,
                applied=one,
            )
            for one in done
            if one.result == "done" and one.step not in ("stop", "policy")
        ]


def waves_of(declared: Sequence[DeclaredStream], terms: ApplyTerms) -> list[list[DeclaredStream]]:
    """The canary first, then waves of at most ``wave`` streams; each after those that it depends on.

    Raises:
        InvalidRequestError: no stream has the canary's label.
    """
    first = [one for one in declared if terms.canary and has_label(one, terms.canary)]
    if terms.canary and not first:
        raise InvalidRequestError(
            "no stream has the label of the canary",
            canary=terms.canary,
            next_step="Give one stream this label, or name no canary.",
        )
    names = {one.stream_id for one in declared}
    done = {one.stream_id for one in first}
    waves = [first] if first else []
    left = [one for one in declared if one.stream_id not in done]
    while left:
        ready = [one for one in left if done.issuperset(names.intersection(one.declaration.depends_on))] or left[:1]
        wave = ready[: terms.wave]
        waves.append(wave)
        done |= {one.stream_id for one in wave}
        left = [one for one in left if one.stream_id not in done]
    return waves


class _UndeclaredStream:
    """Stops a stream that no file declares."""

    def __init__(self, controller: Controller, stream_id: str, terms: ApplyTerms) -> None:
        self._controller = controller
        self._terms = terms
        self._stream_id = stream_id

    def difference(self) -> StreamDifference:
        """What must be done."""
        status = self._controller.status(self._stream_id)
        step: Step = "stop" if status.state in NOT_ENDED else "nothing"
        return StreamDifference(self._stream_id, "not declared", step, str(status.state), status.deployment_id)

    def made(self, found: StreamDifference) -> Applied | UnderWay:
        """What became of it, or what it waits for. Raises StreamStateError."""
        if found.step == "nothing":
            return Applied(self._stream_id, "nothing", "unchanged", "", found.deployment_id)
        request_id = f"pruned-{found.deployment_id}"
        return stopping(self._controller, self._stream_id, request_id, self._terms.timeout_seconds)

    def after(self, waits: UnderWay, _seen: Mapping[str, Any]) -> Applied:
        """What became of it."""
        return Applied(self._stream_id, waits.step, "done", "", waits.deployment_id)


class _OneStream:
    """Makes one stream as declared.

    Args:
        is_tried_again: as in ``Applying.apply_waves``.
    """

    def __init__(
        self, controller: Controller, declared: DeclaredStream, terms: ApplyTerms, say: Say, *, is_tried_again: bool
    ) -> None:
        self._controller = controller
        self._declared = declared
        self._terms = terms
        self._say = say
        self._stream_id = declared.stream_id
        compared = (terms.compared or {}).get(self._stream_id)
        self._before = compared if is_tried_again else None
        self._attempt = 0

    def difference(self) -> StreamDifference:
        """How it differs now; of one attempt, so that what follows from it is the same for two callers at once."""
        for _ in range(_MOST_LOOKS):
            attempt = self._attempt_now()
            found = compare(self._controller, self._declared, tries_again=self._terms.try_again)
            if attempt == self._attempt_now():
                break
        self._attempt = attempt
        return found

    def _attempt_now(self) -> int:
        home = self._controller.home
        try:
            stored = home.control(self._stream_id).register() if home.is_there() else None
        except DataError:
            return 0  # the comparison reports that
        return 0 if stored is None else stored.value.attempt

    def made(self, found: StreamDifference) -> Applied | UnderWay:
        """What became of it, or what it waits for. Raises StreamStateError."""
        if found.step == "continue":
            return self._continued()
        found = self._as_compared(found)
        if found.step == "refused":
            # One that has failed does not run on as before.
            result: Result = "failed" if found.state == "failed" else "refused"
            return Applied(self._stream_id, "refused", result, found.reason, found.deployment_id)
        if found.step == "nothing":
            return self._found_made(found)
        if found.step in ("upgrade", "rescale"):
            return self._upgraded(found)
        if found.step == "deploy":
            return self._deployed(found)
        if found.step == "resume":
            return self._resumed(found)
        if found.step == "stop":
            request_id = f"apply-{_digest(self._declared)}-{found.deployment_id}"
            return stopping(self._controller, self._stream_id, request_id, self._terms.timeout_seconds)
        self._set_rules()
        return Applied(self._stream_id, found.step, "done", "", found.deployment_id)

    def after(self, waits: UnderWay, seen: Mapping[str, Any]) -> Applied | UnderWay:
        """What became of it now that the condition it waited for is met. Raises StreamStateError."""
        if waits.applied is not None:
            reason = f"it was changed, and is {seen['state']} now: {seen['why']}"
            self._say(self._stream_id, reason)
            return replace(waits.applied, result="failed", reason=reason)
        if waits.condition.wanted == "upgrade":
            view = self._controller.upgrades.view(self._stream_id, waits.condition.deployment_id)
            return self.made(self.difference()) if waits.step == "continue" else self._after_upgrade(waits.step, view)
        if waits.step == "stop":
            self._set_rules()
        return Applied(self._stream_id, waits.step, "done", "", waits.deployment_id)

    def _found_made(self, found: StreamDifference) -> Applied:
        """Of a stream that is as declared: a try before this one may have started its change since it was compared."""
        before = self._before
        if before is None or before.step in ("nothing", "refused"):
            return Applied(self._stream_id, "nothing", "unchanged", found.reason, found.deployment_id)
        return Applied(self._stream_id, before.step, "done", "", found.deployment_id)

    def _continued(self) -> Applied | UnderWay:
        """The upgrade that holds the stream, also one of a different declaration; then the stream is compared again.

        Without an upgrade it is a driver that a caller before this one has launched.
        """
        view = self._controller.upgrades.under_way(self._stream_id)
        if view is None:
            found = self.difference()
            return self._launched(found) if found.step == "continue" else self.made(found)
        if self._is_own(view):
            return self._upgrading("upgrade" if self._before is None else self._before.step, view)
        self._say(self._stream_id, f"{view.upgrade_id} is under way, and is completed first")
        return self._upgrading("continue", view)

    def _launched(self, found: StreamDifference) -> UnderWay:
        self._set_rules()
        before = self._before
        step = before.step if before is not None and before.step in ("deploy", "resume") else "continue"
        return self._started(step, found.deployment_id)

    def _is_own(self, view: UpgradeView) -> bool:
        """Whether an upgrade is the change that the file declares: a caller before this one started it."""
        upgrade = view.state.upgrade
        before = self._controller.home.control(self._stream_id).spec(upgrade.old_deployment_id).version
        digest = upgrade_request(self._declared, self._controller.home.home.uri, before).digest
        return upgrade.request_id.startswith(_id_of_change(digest, ""))

    def _as_compared(self, found: StreamDifference) -> StreamDifference:
        """The same, or the refusal of a change that was not compared before: a person approved another one."""
        if self._terms.compared is None or found.step in ("nothing", "refused"):
            return found
        before = self._terms.compared.get(self._stream_id)
        if before is not None and before.step == "refused":
            is_again = self._terms.try_again and found == replace(
                before, kind=found.kind, step="resume", reason=found.reason
            )
            return found if is_again else before
        # A try before this one may have made a part of it.
        if before is not None and found.step in (before.step, "policy") and set(found.fields) <= set(before.fields):
            return found
        reason = "its file, or what runs, is another one than when it was compared; compare it again"
        return replace(found, kind="refused", step="refused", reason=reason)

    def _upgrading(self, step: Step, view: UpgradeView) -> UnderWay:
        until_at = self._until_at(self._declared.declaration.upgrade.timeout_seconds)
        condition = WaitCondition("upgrade", self._stream_id, view.upgrade_id)
        return UnderWay(step, condition, until_at, view.state.upgrade.old_deployment_id)

    def _upgraded(self, found: StreamDifference) -> Applied | UnderWay:
        control = self._controller.home.control(self._stream_id)
        before = control.spec(found.deployment_id).version
        request = upgrade_request(self._declared, self._controller.home.home.uri, before)
        request_id, earlier = self._request_id(request.digest, found.deployment_id)
        if earlier is not None:
            return self._of_upgrade(
                found.step, earlier, "the same declaration ended so before; --again tries it again: "
            )
        return self._upgrading(found.step, self._controller.upgrades.begin(request, request_id))

    def _after_upgrade(self, step: Step, view: UpgradeView) -> Applied:
        if view.is_what_was_asked:
            self._set_rules()
        return self._of_upgrade(step, view, "")

    def _of_upgrade(self, step: Step, view: UpgradeView, before: str) -> Applied:
        result: Result = "failed"
        if view.is_what_was_asked:
            result = "done"
        elif view.outcome == "refused":
            result = "refused"
        error = view.as_error()
        reason = "" if error is None else f"{before}{in_one_line(error)}"
        deployment_id = self._controller.status(self._stream_id).deployment_id
        return Applied(self._stream_id, step, result, reason, deployment_id, view.upgrade_id)

    def _request_id(self, digest: str, deployment_id: str) -> tuple[str, UpgradeView | None]:
        """The id for this change, and the upgrade that it was before, if that must not be tried again.

        One that ended as asked was followed by another version: the same change is a new one then. Unless it was of
        this very deployment: then another caller has made it since this one compared.
        """
        for number in range(1, _MOST_TRIES):
            request_id = _id_of_change(digest, str(number))
            try:
                view = self._controller.upgrades.view(self._stream_id, upgrade_id_for(request_id))
            except InvalidRequestError:
                return request_id, None
            if not view.is_over:
                return request_id, None
            is_made = view.is_what_was_asked and view.state.upgrade.old_deployment_id == deployment_id
            if is_made or (not view.is_what_was_asked and not self._terms.try_again):
                return request_id, view
        raise ConflictError("this change was tried too often", stream_id=self._stream_id, tries=_MOST_TRIES)

    def _deployed(self, found: StreamDifference) -> UnderWay:
        request = deploy_request(self._declared, self._controller.home.home.uri, self._deploy_id(found))
        view = self._controller.deploy(request)
        return self._started("deploy", view.deployment_id)

    def _deploy_id(self, found: StreamDifference) -> str:
        """The same for every try to follow the deployment that was compared by this declaration: where another caller
        has made it since, this one finds it."""
        home = self._controller.home
        stored = home.control(self._stream_id).register() if home.is_there() else None
        intent = None if stored is None else stored.value.intent
        digest = _digest(self._declared)
        if intent is not None and intent.request_id.startswith(f"apply-{digest}-"):
            return intent.request_id
        return f"apply-{digest}-{found.deployment_id or 'first'}"

    def _resumed(self, found: StreamDifference) -> UnderWay:
        self._set_rules()
        # One that was recorded and not launched is the attempt that follows.
        attempt = self._attempt - (found.state == "launching")
        view = self._controller.resume(
            self._stream_id,
            # Two calls at once resume it once.
            request_id=f"apply-{_digest(self._declared)}-{found.deployment_id}-{attempt}",
            reason=f"declared in {self._declared.path.name}",
            accept_hazards=upgrade_terms(self._declared).accept_hazards,
        )
        return self._started("resume", view.deployment_id)

    def _started(self, step: Step, deployment_id: str) -> UnderWay:
        condition = WaitCondition("healthy", self._stream_id, deployment_id)
        return UnderWay(step, condition, self._until_at(self._terms.timeout_seconds), deployment_id)

    def _until_at(self, seconds: float) -> datetime:
        return self._controller.clock.now() + timedelta(seconds=seconds)

    def _set_rules(self) -> None:
        """Make restart policy, alert rules, owner, labels and retention as declared; nothing is started or ended."""
        details = self._controller.details
        wanted = stream_values(self._declared)
        details.change_alert_rules(self._stream_id, wanted["alert_rules"])
        if vars(details.ownership(self._stream_id)) != {"owner": wanted["owner"], "labels": wanted["labels"]}:
            details.change_ownership(self._stream_id, wanted["owner"], wanted["labels"])
        kept = RetentionPolicy.of(wanted["retention"])
        if details.retention(self._stream_id) != kept:
            details.change_retention(self._stream_id, kept)
        if vars(details.restart_policy(self._stream_id)) != wanted["restart_policy"]:
            details.change_restart_policy(self._stream_id, wanted["restart_policy"])


def stopping(controller: Controller, stream_id: str, request_id: str, timeout_seconds: float) -> UnderWay:
    """Order a stream to stop; it waits for its end. Raises as ``Controller.stop``."""
    order = controller.order("stop", stream_id, request_id=request_id, reason="as its file declares")
    until_at = controller.clock.now() + timedelta(seconds=timeout_seconds)
    return UnderWay("stop", WaitCondition.of(order), until_at, order.deployment_id)


def _ended_by(error: StreamStateError, stream_id: str, last: UnderWay | StreamDifference | None) -> Applied:
    """What became of a stream whose change, or whose watch, ended with an error."""
    if isinstance(last, UnderWay) and last.applied is not None:
        # The time is up, and nothing was wrong; or the home did not answer, so that this is not known.
        is_well = isinstance(error, DeadlineExceededError) and UNANSWERED not in error.context
        return last.applied if is_well else replace(last.applied, result="failed", reason=in_one_line(error))
    step: Step = "nothing" if last is None else last.step
    deployment_id = "" if last is None else last.deployment_id
    result: Result = "refused" if isinstance(error, ConflictError | DeploymentRefusedError) else "failed"
    return Applied(stream_id, step, result, in_one_line(error), deployment_id)


def _is_to_stop(found: StreamDifference, terms: ApplyTerms) -> bool:
    if found.step == "nothing" or terms.compared is None:
        return found.step != "nothing"
    known = terms.compared.get(found.stream_id)
    return known is not None and known.step == "stop"


def _hold_back(wave: Sequence[Target], reason: str, progress: _Progress) -> None:
    for one in wave:
        step: Step = "stop" if isinstance(one, StreamDifference) else "nothing"
        progress.add(Applied(one.stream_id, step, "not begun", reason))


def _held_back_by(target: Target, progress: _Progress) -> str:
    """Which stream that it depends on is not as declared, or ""."""
    for name in () if isinstance(target, StreamDifference) else target.declaration.depends_on:
        before = progress.by_stream.get(name)
        if before is not None and not before.is_well:
            return f"it depends on {name}, which is {before.result}"
    return ""


def _canaries(targets: Iterable[Target], terms: ApplyTerms) -> Set[str]:
    declared = (one for one in targets if not isinstance(one, StreamDifference))
    return {one.stream_id for one in declared if terms.canary and has_label(one, terms.canary)}


def has_label(declared: DeclaredStream, label: str) -> bool:
    """Whether it has a label, given as ``NAME`` or ``NAME=VALUE``."""
    values = stream_values(declared)
    return Ownership(values["owner"], values["labels"]).has(label)


def words(found: StreamDifference) -> str:
    """What ``apply`` does with it, in one line."""
    names = ", ".join(one.name for one in found.fields)
    parts = [found.step, *([f"({names})"] if names else []), *([f"since {found.reason}"] if found.reason else [])]
    return " ".join(parts)


def _id_of_change(digest: str, number: str) -> str:
    """The request id of the upgrade to a version, by its digest; ``number`` counts the tries."""
    return f"apply-{digest[:24]}-{number}"


def _digest(declared: DeclaredStream) -> str:
    plain = json.dumps(declared.declaration.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode()).hexdigest()[:24]
