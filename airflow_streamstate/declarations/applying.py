"""Making streams as their files say: each change a deploy, an upgrade, a resume or a stop, with its own journal.

The request id of each act is made from the declaration, so that a second call, or a second caller, finds the act of
the first one and goes on with it (Law 2). What one declaration was refused for is not tried again by itself.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_streamstate.clock import Clock
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.request.version import Version
from airflow_streamstate.controller.upgrade.views import UpgradeView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.declarations.comparing import Step, StreamDifference, compare, undeclared
from airflow_streamstate.declarations.reading import DeclaredStream
from airflow_streamstate.declarations.versions import (
    alert_rules_of,
    deploy_request,
    ownership_of,
    policy_of,
    upgrade_request,
)
from airflow_streamstate.errors import ConflictError, InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.ids import upgrade_id_for

Say = Callable[[str, str], None]
"""Told a stream and one line about it."""
Result = Literal["done", "unchanged", "refused", "failed", "not begun"]
_MOST_TRIES = 1_000
_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Applied:
    """What became of one stream.

    Attributes:
        result: ``done``: it is as declared now; ``unchanged``: it was; ``refused``, ``failed``: it runs as before or
            not, as ``reason`` says; ``not begun``: other failures, or a stream that it depends on, held it back.
        upgrade_id: of an upgrade; "" for none.
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

    def to_json(self) -> dict[str, object]:
        """The fields."""
        return dict(vars(self))


@dataclass(frozen=True)
class ApplyTerms:
    """How a folder is applied.

    Attributes:
        canary: a label, ``NAME`` or ``NAME=VALUE``: the streams that have it come first, and unless all of them become
            well nothing else is touched; "" for no canary.
        wave: how many streams are changed at a time.
        stop_after_failures: begin no other stream after so many failures; None: one stream's failure holds back no
            other but those that depend on it.
        healthy_for_seconds: how long the streams of a wave have to be well before the next wave.
        prunes: streams that no file declares are stopped.
        tries_again: try again what the same declaration was refused for.
        timeout_seconds: how long to wait for a deploy or a stop; an upgrade has its own.
        compared: what ``diff`` said before, by stream: one that would be changed otherwise by now is refused; None:
            each is changed as it differs now.
    """

    canary: str = ""
    wave: int = 1
    stop_after_failures: int | None = None
    healthy_for_seconds: float = 0.0
    prunes: bool = False
    tries_again: bool = False
    timeout_seconds: float = 600.0
    compared: Mapping[str, StreamDifference] | None = None


@dataclass
class _Progress:
    """What became of the streams so far."""

    canaries: Set[str]
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
        say: told each step in one line.
    """

    def __init__(
        self, new_controller: Callable[[], Controller], clock: Clock, say: Say = lambda _id, _line: None
    ) -> None:
        self._new_controller = new_controller
        self._clock = clock
        self._say = say

    def apply(self, declared: Sequence[DeclaredStream], terms: ApplyTerms) -> list[Applied]:
        """Make the streams as declared; what became of each, in the order in which they were begun.

        Raises:
            InvalidRequestError: the terms contradict each other, or no stream has the canary's label.
            UnavailableError: the home does not answer.
        """
        waves = waves_of(declared, terms)
        applied = self.apply_waves(waves, terms, len(waves) - 1)
        if not terms.prunes:
            return applied
        return [*applied, *self.prune(declared, terms, applied)]

    def apply_waves(self, waves: Sequence[Sequence[DeclaredStream]], terms: ApplyTerms, last: int) -> list[Applied]:
        """As ``apply``, up to the wave with the index ``last``: what is done already is found ``unchanged``.

        Args:
            waves: all of them; the streams of the wave ``last`` are watched, too, if another one follows.
        """
        progress = _Progress(_canaries((one for wave in waves for one in wave), terms))
        for number, wave in enumerate(waves[: last + 1]):
            held_back = self._held_back(progress, terms)
            for one in wave if held_back else ():
                progress.add(Applied(one.stream_id, "nothing", "not begun", held_back))
            if not held_back:
                self._run_wave(wave, terms, progress)
                self._wait_healthy(wave, terms, progress, is_last=number == len(waves) - 1)
        return list(progress.by_stream.values())

    def prune(self, declared: Sequence[DeclaredStream], terms: ApplyTerms, applied: Sequence[Applied]) -> list[Applied]:
        """Stop what no file declares; held back as any other stream by what became of the streams before."""
        progress, controller = _Progress(_canaries(declared, terms)), self._new_controller()
        for one in applied:
            progress.add(one)
        found: list[Applied] = []
        for difference in undeclared(controller, declared):
            known = None if terms.compared is None else terms.compared.get(difference.stream_id)
            if difference.step != "nothing" and (terms.compared is None or (known and known.step == "stop")):
                found.append(self._pruned(controller, difference, terms, self._held_back(progress, terms)))
                progress.add(found[-1])
        return found

    def _held_back(self, progress: _Progress, terms: ApplyTerms) -> str:
        """Why nothing else is begun; "" for no reason."""
        if not all(one.is_well for name, one in progress.by_stream.items() if name in progress.canaries):
            return "a canary is not well"
        most = terms.stop_after_failures
        if most is not None and progress.failures >= most:
            return f"{progress.failures} streams have failed before it"
        return ""

    def _run_wave(self, wave: Sequence[DeclaredStream], terms: ApplyTerms, progress: _Progress) -> None:
        with ThreadPoolExecutor(max(1, min(terms.wave, len(wave))), thread_name_prefix="apply") as pool:
            for one in pool.map(lambda each: self._apply_one(each, terms, progress), wave):
                progress.add(one)

    def _apply_one(self, declared: DeclaredStream, terms: ApplyTerms, progress: _Progress) -> Applied:
        stream_id = declared.stream_id
        for name in declared.declaration.depends_on:
            before = progress.by_stream.get(name)
            if before is not None and not before.is_well:
                return Applied(stream_id, "nothing", "not begun", f"it depends on {name}, which is {before.result}")
        controller = self._new_controller()
        found = compare(controller, declared)
        self._say(stream_id, words(found))
        try:
            return _OneStream(controller, declared, terms, self._say).made(found)
        except ConflictError as error:
            return Applied(stream_id, found.step, "refused", str(error), found.deployment_id)
        except StreamStateError as error:
            return Applied(stream_id, found.step, "failed", str(error), found.deployment_id)

    def _wait_healthy(
        self, wave: Sequence[DeclaredStream], terms: ApplyTerms, progress: _Progress, *, is_last: bool
    ) -> None:
        """Watch the changed streams of a wave; one that ends or degrades meanwhile has failed."""
        names = [one.stream_id for one in wave if progress.by_stream[one.stream_id].result == "done"]
        names = [name for name in names if progress.by_stream[name].step not in ("stop", "policy")]
        if not names or not terms.healthy_for_seconds or is_last:
            return
        controller, until = self._new_controller(), self._clock.monotonic_seconds() + terms.healthy_for_seconds
        while names and self._clock.monotonic_seconds() < until:
            for name in list(names):
                status = controller.status(name)
                if status.state not in ("running", "finished"):
                    names.remove(name)
                    one = progress.by_stream[name]
                    reason = f"it was changed, and is {status.state} now: {status.why}"
                    progress.add(Applied(name, one.step, "failed", reason, one.deployment_id, one.upgrade_id))
                    self._say(name, reason)
            self._clock.sleep(min(_LOOK_SECONDS, terms.healthy_for_seconds))

    def _pruned(self, controller: Controller, found: StreamDifference, terms: ApplyTerms, held_back: str) -> Applied:
        stream_id, deployment_id = found.stream_id, found.deployment_id
        if held_back:
            return Applied(stream_id, "stop", "not begun", held_back, deployment_id)
        self._say(stream_id, words(found))
        try:
            stop(controller, stream_id, f"pruned-{deployment_id}", terms.timeout_seconds)
        except StreamStateError as error:
            return Applied(stream_id, "stop", "failed", str(error), deployment_id)
        return Applied(stream_id, "stop", "done", "", deployment_id)


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


class _OneStream:
    """Makes one stream as declared."""

    def __init__(self, controller: Controller, declared: DeclaredStream, terms: ApplyTerms, say: Say) -> None:
        self._controller = controller
        self._declared = declared
        self._terms = terms
        self._say = say
        self._stream_id = declared.stream_id

    def made(self, found: StreamDifference) -> Applied:
        """What became of it. Raises StreamStateError."""
        while found.step == "continue":
            found = self._continued()
        found = self._as_compared(found)
        if found.step == "refused":
            return Applied(self._stream_id, "refused", "refused", found.reason, found.deployment_id)
        if found.step == "nothing":
            return Applied(self._stream_id, "nothing", "unchanged", found.reason, found.deployment_id)
        if found.step in ("upgrade", "rescale"):
            return self._upgraded(found)
        if found.step == "deploy":
            return self._deployed()
        if found.step == "resume":
            return self._resumed(found)
        if found.step == "stop":
            request_id = f"apply-{_digest(self._declared)}-{found.deployment_id}"
            stop(self._controller, self._stream_id, request_id, self._terms.timeout_seconds)
        self._set_rules()
        return Applied(self._stream_id, found.step, "done", "", found.deployment_id)

    def _continued(self) -> StreamDifference:
        """How the stream differs once the upgrade that holds it has ended, also one of another declaration."""
        view = self._controller.upgrades.under_way(self._stream_id)
        if view is not None:
            self._say(self._stream_id, f"{view.upgrade_id} is under way, and is completed first")
            self._run(view)
        return compare(self._controller, self._declared)

    def _as_compared(self, found: StreamDifference) -> StreamDifference:
        """The same, or the refusal of a change that was not compared before: a person approved another one."""
        if self._terms.compared is None or found.step in ("nothing", "refused"):
            return found
        before = self._terms.compared.get(self._stream_id)
        if before is not None and before.step == "refused":
            return before
        if before is not None and (before.step, before.fields) == (found.step, found.fields):
            return found
        reason = "its file, or what runs, is another one than when it was compared; compare it again"
        return replace(found, kind="refused", step="refused", reason=reason)

    def _run(self, view: UpgradeView) -> UpgradeView:
        return self._controller.upgrades.run(
            view.stream_id,
            view.upgrade_id,
            self._declared.declaration.upgrade.timeout_seconds,
            None,
            lambda line: self._say(self._stream_id, line),
        )

    def _upgraded(self, found: StreamDifference) -> Applied:
        control = self._controller.home.control(self._stream_id)
        before = Version.of(control.spec(found.deployment_id))
        request = upgrade_request(self._declared, self._controller.home.home.uri, before)
        request_id, earlier = self._request_id(request.digest, found.deployment_id)
        if earlier is not None:
            return self._of_upgrade(found, earlier, "the same declaration ended so before; --again tries it again: ")
        view = self._run(self._controller.upgrades.begin(request, request_id))
        if view.is_what_was_asked:
            self._set_rules()
        return self._of_upgrade(found, view, "")

    def _of_upgrade(self, found: StreamDifference, view: UpgradeView, before: str) -> Applied:
        result: Result = "failed"
        if view.is_what_was_asked:
            result = "done"
        elif view.outcome == "refused":
            result = "refused"
        error = view.as_error()
        reason = "" if error is None else f"{before}{error}"
        deployment_id = self._controller.status(self._stream_id).deployment_id
        return Applied(self._stream_id, found.step, result, reason, deployment_id, view.upgrade_id)

    def _request_id(self, digest: str, deployment_id: str) -> tuple[str, UpgradeView | None]:
        """The id for this change, and the upgrade that it was before, where that is not to be tried again.

        One that ended as asked was followed by another version: the same change is a new one then. Unless it was of
        this very deployment: then another caller has made it since this one compared.
        """
        for number in range(1, _MOST_TRIES):
            request_id = f"apply-{digest[:24]}-{number}"
            try:
                view = self._controller.upgrades.view(self._stream_id, upgrade_id_for(request_id))
            except InvalidRequestError:
                return request_id, None
            if not view.is_over:
                return request_id, None
            is_made = view.is_what_was_asked and view.state.upgrade.old_deployment_id == deployment_id
            if is_made or (not view.is_what_was_asked and not self._terms.tries_again):
                return request_id, view
        raise ConflictError("this change was tried too often", stream_id=self._stream_id, tries=_MOST_TRIES)

    def _deployed(self) -> Applied:
        request = deploy_request(self._declared, self._controller.home.home.uri, self._deploy_id())
        view = self._controller.deploy(request)
        self._wait_started(view.deployment_id)
        return Applied(self._stream_id, "deploy", "done", "", view.deployment_id)

    def _deploy_id(self) -> str:
        """The same for every try to follow the current deployment by this declaration."""
        home = self._controller.home
        stored = home.control(self._stream_id).register() if home.is_there() else None
        register = None if stored is None else stored.value
        digest = _digest(self._declared)
        first = f"apply-{digest}-{register.deployment_id if register and register.deployment_id else 'first'}"
        if register is None or register.intent is None:
            return first
        return register.intent.request_id if register.intent.request_id.startswith(f"apply-{digest}-") else first

    def _resumed(self, found: StreamDifference) -> Applied:
        self._set_rules()
        attempt = self._controller.status(self._stream_id).attempt
        view = self._controller.resume(
            self._stream_id,
            # Two calls at once resume it once.
            request_id=f"apply-{_digest(self._declared)}-{found.deployment_id}-{attempt}",
            reason=f"declared in {self._declared.path.name}",
        )
        self._wait_started(view.deployment_id)
        return Applied(self._stream_id, found.step, "done", "", view.deployment_id)

    def _wait_started(self, deployment_id: str) -> None:
        condition = WaitCondition("healthy", self._stream_id, deployment_id)
        self._controller.wait(condition, self._terms.timeout_seconds)

    def _set_rules(self) -> None:
        """Make restart policy, alert rules, owner and labels as declared; nothing is started or ended."""
        details, owned = self._controller.details, ownership_of(self._declared)
        details.change_alert_rules(self._stream_id, alert_rules_of(self._declared))
        if details.ownership(self._stream_id) != owned:
            details.change_ownership(self._stream_id, owned.owner, owned.labels)
        wanted, supervision = policy_of(self._declared), self._controller.supervision
        if vars(supervision.policy(self._stream_id)) != wanted:
            supervision.change_policy(self._stream_id, wanted)


def stop(controller: Controller, stream_id: str, request_id: str, timeout_seconds: float) -> None:
    """Stop a stream, and wait for its end. Raises as ``Controller.stop`` and ``.wait``."""
    order = controller.stop(stream_id, request_id=request_id, reason="as its file says")
    controller.wait(WaitCondition.of(order), timeout_seconds)


def _canaries(declared: Iterable[DeclaredStream], terms: ApplyTerms) -> Set[str]:
    return {one.stream_id for one in declared if terms.canary and has_label(one, terms.canary)}


def has_label(declared: DeclaredStream, label: str) -> bool:
    """Whether it has a label, given as ``NAME`` or ``NAME=VALUE``."""
    return ownership_of(declared).has(label)


def words(found: StreamDifference) -> str:
    """What ``apply`` does with it, in one line."""
    names = ", ".join(one.name for one in found.fields)
    parts = [found.step, *([f"({names})"] if names else []), *([f"since {found.reason}"] if found.reason else [])]
    return " ".join(parts)


def _digest(declared: DeclaredStream) -> str:
    plain = json.dumps(declared.declaration.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode()).hexdigest()[:24]
