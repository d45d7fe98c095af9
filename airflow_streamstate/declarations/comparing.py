"""What a declared stream differs in from what the home runs, and what would make it so. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from airflow_streamstate.control.alerts import AlertBook
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.deploy.takeover import has_committed
from airflow_streamstate.controller.observe.observation import NOT_ENDED, Observation
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.wait.waiting import is_healthy
from airflow_streamstate.declarations.named_checkpoints import check_named_checkpoints
from airflow_streamstate.declarations.reading import DeclaredStream
from airflow_streamstate.declarations.versions import (
    alert_rules_of,
    check_script,
    deploy_request,
    ownership_of,
    policy_of,
    retention_of,
    rewrite_of,
    upgrade_request,
    version_after,
)
from airflow_streamstate.errors import HomeFormatError, InvalidRequestError, StreamNotFoundError, StreamStateError
from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.redaction import redact_text, secrets_of
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.retention import RetentionPolicy
from airflow_streamstate.protocol.terms.version import Artifact, Version

Step = Literal["deploy", "upgrade", "rescale", "resume", "stop", "policy", "continue", "nothing", "refused"]
Kind = Literal["new", "changed", "unchanged", "not declared", "refused"]
_KINDS: Mapping[Step, Kind] = {
    "nothing": "unchanged", "resume": "unchanged", "refused": "refused", "continue": "changed", "stop": "changed",
    "upgrade": "changed", "rescale": "changed", "policy": "changed", "deploy": "new",
}  # fmt: skip
_OF_CODE = ("application", "modules", "py_files", "files")
_SHOWN = ("arguments", "packages", "mirrors")
_PLAIN = ("master", "spark_conn_id", "attaches", "version_label", "snapshots", "on_query_failure", "working_folder")
_DIGEST_CHARACTERS = 12
_LONG_FACTS = ("traceback", "log_tail")
_OF_NO_VERSION = frozenset({"restart", "alerts", "owner", "labels", "retention"})
"""Changed without another version, and without a restart."""
HAS_READ_ALL = "it has read all its input, and drained itself; `streamstate deploy` starts it again"


@dataclass(frozen=True)
class FieldDifference:
    """One field; ``before`` and ``after`` are "" for not there. Values of ``environment`` are not shown."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class StreamDifference:
    """How a stream differs from its declaration.

    Attributes:
        step: what ``apply`` would do. ``continue``: it completes an upgrade that is under way, or waits for a driver
            that has been launched, and has not committed anything yet. ``stop`` of a stream that is not declared:
            only where it prunes.
        state, deployment_id: of the stream now; "" where it is new.
        fields: what differs of the version; of its restart policy as ``restart.NAME``, of its alert rules as
            ``alerts.NAME``, of its labels as ``labels.NAME``, of its retention as ``retention.NAME``, and ``owner``.
        reason: why nothing can be done, or what is under way; "" for nothing to say.
        verdict: of the plan; "" where none was made.
    """

    stream_id: str
    kind: Kind
    step: Step
    state: str = ""
    deployment_id: str = ""
    fields: tuple[FieldDifference, ...] = ()
    reason: str = ""
    verdict: str = ""

    def to_json(self) -> dict[str, object]:
        """The fields."""
        return {**vars(self), "fields": [asdict(one) for one in self.fields]}

    @classmethod
    def from_json(cls, raw: object) -> StreamDifference:
        """The inverse. Raises InvalidRequestError: this is no such difference."""
        try:
            return _DIFFERENCE.validate_python(raw)
        except ValidationError:
            raise InvalidRequestError(
                "this is not what `diff` says of a stream", next_step="Give the JSON of `streamstate diff --json`."
            ) from None


_DIFFERENCE = TypeAdapter(StreamDifference)


def compare(controller: Controller, declared: DeclaredStream, *, tries_again: bool = False) -> StreamDifference:
    """Compare a declared stream with what the home runs. Never raises for a stream that cannot be compared.

    Args:
        tries_again: a driver that has failed before it had committed anything is to be tried again as it is.
    """
    stream_id = declared.stream_id
    try:
        return (
            _compared(controller, declared, tries_again=tries_again)
            if controller.home.is_there()
            else _new(controller, declared)
        )
    except StreamNotFoundError:
        return _new(controller, declared)
    except StreamStateError as error:
        return StreamDifference(stream_id, "refused", "refused", reason=in_one_line(error))


def in_one_line(error: StreamStateError) -> str:
    """The error for a list of streams: without traceback and log, which ``streamstate status`` and ``logs`` show."""
    lines = {name: str(fact).strip().splitlines() for name, fact in error.context.items() if fact is not None}
    kept = {
        name: lines[name][0] if len(lines[name]) > 1 else fact
        for name, fact in error.context.items()
        if lines.get(name) and name not in _LONG_FACTS
    }
    return " ".join(str(type(error)(error.message, next_step=error.next_step, **kept)).split())


def compare_all(
    controller: Controller,
    declared: Sequence[DeclaredStream],
    plan_deadline_seconds: float | None,
    report: Callable[[str], None] = lambda _: None,
    *,
    are_all: bool = True,
) -> list[StreamDifference]:
    """How all of them differ, and what no file declares.

    Args:
        are_all: other streams are not declared; false: nothing is known of them.
        plan_deadline_seconds: each changed version is rehearsed, for so long at most; None: none is.
        report: told each stream before it is compared.

    Raises:
        HomeFormatError: this version does not read the home.
        UnavailableError: the home does not answer.
    """
    refuse_other_format(controller)
    found = []
    for one in declared:
        report(one.stream_id)
        difference = compare(controller, one)
        if plan_deadline_seconds is not None and difference.step in ("upgrade", "rescale"):
            difference = _with_plan(controller, one, difference, plan_deadline_seconds)
        found.append(difference)
    return [*found, *(undeclared(controller, declared) if are_all else ())]


def refuse_other_format(controller: Controller) -> None:
    """Raises HomeFormatError for a home that this version does not read. Any other error is reported by stream."""
    try:
        controller.home.presence.need_readable()
    except HomeFormatError:
        raise
    except StreamStateError:
        return


def undeclared(controller: Controller, declared: Sequence[DeclaredStream]) -> list[StreamDifference]:
    """The streams of the home that no file declares; those that have ended need nothing."""
    names = {one.stream_id for one in declared}
    found: list[StreamDifference] = []
    if not controller.home.is_there():
        return found
    for status in controller.statuses():
        if status.stream_id in names:
            continue
        if status.state == "unreadable":
            found.append(StreamDifference(status.stream_id, "refused", "refused", "unreadable", reason=status.error))
            continue
        if _is_retired(controller, status.stream_id):
            continue
        step: Step = "stop" if status.state in NOT_ENDED else "nothing"
        found.append(StreamDifference(status.stream_id, "not declared", step, str(status.state), status.deployment_id))
    return found


def _with_plan(
    controller: Controller, declared: DeclaredStream, found: StreamDifference, deadline_seconds: float
) -> StreamDifference:
    """The difference with the verdict of a rehearsal; ``refused`` where an upgrade would be."""
    before = controller.home.control(found.stream_id).spec(found.deployment_id).version
    try:
        request = upgrade_request(declared, controller.home.home.uri, before)
        view = controller.plans.begin(
            request.change,
            terms=request.terms,
            deadline_seconds=deadline_seconds,
        )
        try:
            report = controller.plans.wait(view)
        except KeyboardInterrupt:
            controller.plans.give_up(found.stream_id, view.rehearsal_id)
            raise
    except StreamStateError as error:
        return replace(found, kind="refused", step="refused", reason=in_one_line(error))
    verdict = report.verdict or ""
    is_drained = verdict == "needs-drain" and (request.terms.allow_drain or request.terms.mode == "drain")
    if report.outcome == "fits" or is_drained:
        return replace(found, verdict=verdict, reason=report.reason)
    return replace(found, kind="refused", step="refused", verdict=verdict, reason=report.reason)


def _is_retired(controller: Controller, stream_id: str) -> bool:
    stored = controller.home.control(stream_id).register()
    return stored is not None and stored.value.retirement is not None


def _new(controller: Controller, declared: DeclaredStream) -> StreamDifference:
    stream_id = declared.stream_id
    if declared.declaration.desired_state == "stopped":
        return StreamDifference(stream_id, "unchanged", "nothing", reason="it was never deployed, and is not to run")
    try:
        request = deploy_request(declared, controller.home.home.uri)
        check_script(declared)
        if declared.declaration.start != "fresh":
            check_named_checkpoints(request, controller.home.config.options)
    except StreamStateError as error:
        return StreamDifference(stream_id, "refused", "refused", reason=in_one_line(error))
    return StreamDifference(stream_id, "new", "deploy")


def _compared(controller: Controller, declared: DeclaredStream, *, tries_again: bool) -> StreamDifference:
    stream_id = declared.stream_id
    register = controller.home.need_stream(stream_id).need_register().value
    if register.deployment_id is None:
        raise controller.home.control(stream_id).not_found()
    seen, status = controller.observed(stream_id)
    if seen is None:
        return StreamDifference(stream_id, "refused", "refused", str(status.state), reason=status.error)
    before = controller.home.control(stream_id).spec(register.deployment_id).version
    version = version_after(declared, controller.home.home.uri, before)
    alerts = _of_alerts(declared, AlertBook(controller.home.control(stream_id)).rules())
    owned = _of_ownership(register.ownership, ownership_of(declared))
    kept = _of_retention(register.retention, retention_of(declared))
    found = (*differences(before, version), *_of_policy(declared, register), *alerts, *owned, *kept)
    has_rewrite = rewrite_of(declared, before) is not None
    step, reason = _step(declared, seen, status, found, has_rewrite=has_rewrite)
    if step == "resume" and seen.state == "failed" and not found and not tries_again:
        step, reason = _step_of_failed(controller, seen, status)
    if any(one.name == "application" for one in found):
        check_script(declared)
    is_changed = any(one.name != "version_label" for one in found)
    kind = "changed" if is_changed and _KINDS[step] == "unchanged" else _KINDS[step]
    if step == "deploy" or (step == "continue" and not status.upgrade):
        kind = "changed" if found else "unchanged"
    return StreamDifference(stream_id, kind, step, str(status.state), status.deployment_id, found, reason)


def _step_of_failed(controller: Controller, seen: Observation, status: StreamStatus) -> tuple[Step, str]:
    """Of a version that the same file declares: one that has run is resumed, one that never did would fail again."""
    if has_committed(controller.home, controller.home.control(seen.stream_id), seen):
        return "resume", "it is failed"
    error = (status.error or status.why).strip().partition("\n")[0]
    return "refused", f"its driver failed before it had committed anything; --again tries it again: {error}"


def differences(before: Version, after: Version) -> tuple[FieldDifference, ...]:
    """The fields in which two versions differ; secrets that are recorded as plain text are hidden."""
    secrets = [text for one in (before, after) for text in secrets_of(one.conf, one.arguments, one.environment)]
    return tuple(
        replace(one, before=redact_text(one.before, secrets), after=redact_text(one.after, secrets))
        for one in _differences(before, after)
    )


def _differences(before: Version, after: Version) -> Iterator[FieldDifference]:
    for name in _OF_CODE:
        old, new = getattr(before, name), getattr(after, name)
        old, new = (old, new) if isinstance(old, tuple) else ((old,), (new,))
        yield from _of_artifacts(name, old, new)
    for name in _SHOWN:
        old, new = (" ".join(map(str, getattr(one, name))) for one in (before, after))
        yield from _one(name, old, new)
    jars = [[jar for jar in one.jars if isinstance(jar, Artifact)] for one in (before, after)]
    yield from _of_artifacts("jars", *jars)
    yield from _one("jars", *(" ".join(jar for jar in one.jars if isinstance(jar, str)) for one in (before, after)))
    for name in _PLAIN:
        yield from _one(name, _text(getattr(before, name)), _text(getattr(after, name)))
    yield from _of_mapping("conf", before.conf, after.conf)
    for one in _of_mapping("environment", before.environment, after.environment):
        yield FieldDifference(one.name, "…" if one.before else "", "… (another value)" if one.after else "")
    yield from _of_launchers(before, after)
    if before.settings is not None and after.settings is not None:
        old_settings, new_settings = asdict(before.settings), asdict(after.settings)
        yield from _of_mapping(
            "settings", *({k: _text(v) for k, v in each.items()} for each in (old_settings, new_settings))
        )


def _of_artifacts(name: str, before: Sequence[Artifact], after: Sequence[Artifact]) -> Iterator[FieldDifference]:
    old, new = ({one.name: one.sha256 for one in each} for each in (before, after))
    if name == "application" and len(before) == len(after) == 1:
        if before[0].sha256 != after[0].sha256:
            yield FieldDifference(name, _short(before[0]), _short(after[0]))
        return
    for each in sorted({*old, *new}):
        if old.get(each) != new.get(each):
            yield FieldDifference(
                f"{name}.{each}", old.get(each, "")[:_DIGEST_CHARACTERS], new.get(each, "")[:_DIGEST_CHARACTERS]
            )


def _short(artifact: Artifact) -> str:
    return f"{artifact.name} {artifact.sha256[:_DIGEST_CHARACTERS]}"


def _of_launchers(before: Version, after: Version) -> Iterator[FieldDifference]:
    old, new = before.launcher, after.launcher
    yield from _one("launcher", old.name if old else "local", new.name if new else "local")
    yield from _one("launcher.conn_id", old.conn_id if old else "", new.conn_id if new else "")
    archives = [() if one is None or one.python_env is None else (one.python_env,) for one in (old, new)]
    yield from _of_artifacts("launcher.options.python_env", *archives)
    options = [{name: _text(value) for name, value in (one.options if one else {}).items()} for one in (old, new)]
    yield from _of_mapping("launcher.options", *options)


def _of_mapping(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[FieldDifference]:
    for key in sorted({*before, *after}):
        yield from _one(f"{name}.{key}", before.get(key, ""), after.get(key, ""))


def _one(name: str, before: str, after: str) -> Iterator[FieldDifference]:
    if before != after:
        yield FieldDifference(name, before, after)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _of_policy(declared: DeclaredStream, register: StreamRegister) -> tuple[FieldDifference, ...]:
    old, new = vars(register.restart_policy), policy_of(declared)
    return tuple(_of_mapping("restart", *({key: _text(value) for key, value in each.items()} for each in (old, new))))


def _of_alerts(declared: DeclaredStream, rules: AlertRules) -> tuple[FieldDifference, ...]:
    both = ({**one, "off": " ".join(one["off"])} for one in (vars(rules), alert_rules_of(declared)))
    return tuple(_of_mapping("alerts", *({key: _text(value) for key, value in each.items()} for each in both)))


def _of_ownership(before: Ownership, after: Ownership) -> Iterator[FieldDifference]:
    yield from _one("owner", before.owner, after.owner)
    for name in sorted({*before.labels, *after.labels}):
        old, new = (one.labels.get(name) for one in (before, after))
        if old != new:  # a label may be there without a value
            yield FieldDifference(f"labels.{name}", *('""' if one == "" else one or "" for one in (old, new)))


def _of_retention(before: RetentionPolicy | None, after: RetentionPolicy | None) -> Iterator[FieldDifference]:
    both = ({} if one is None else {name: _text(value) for name, value in vars(one).items()} for one in (before, after))
    yield from _of_mapping("retention", *both)


def _step(
    declared: DeclaredStream,
    seen: Observation,
    status: StreamStatus,
    found: Sequence[FieldDifference],
    *,
    has_rewrite: bool,
) -> tuple[Step, str]:
    """What makes the stream as declared, and why it is that, where that needs a word."""
    if seen.register.retirement is not None:
        return "refused", "the stream is retired; `streamstate deploy --revive` starts it again"
    if status.upgrade:
        return "continue", status.upgrade
    is_alive, is_to_run = status.state in NOT_ENDED, declared.declaration.desired_state == "running"
    # A label alone restarts nothing: it is the name of the next version.
    names = {one.name.partition(".")[0] for one in found} - {"version_label"}
    if not is_to_run and not is_alive:
        return ("nothing" if names.isdisjoint(_OF_NO_VERSION) else "policy"), ""
    if not is_to_run:
        return "stop", ""
    if status.state == "lost":
        return "refused", f"its driver is lost: {status.why}"
    if status.state == "silent":
        ways = f"`streamstate kill {status.stream_id}` ends it, `streamstate resume {status.stream_id}` starts it again"
        return "refused", f"{status.why}; {ways}"
    if is_alive:
        step = _step_of_running(names, has_rewrite=has_rewrite)
        return _step_of_starting(seen) or (step, "") if step in ("nothing", "policy") else (step, "")
    if seen.has_drained_itself and names <= _OF_NO_VERSION:
        return ("policy", "") if names else ("nothing", HAS_READ_ALL)
    return _step_of_ended(str(status.state), names, has_rewrite=has_rewrite)


def _step_of_running(names: Set[str], *, has_rewrite: bool) -> Step:
    of_version = names - _OF_NO_VERSION
    if not of_version:
        return "policy" if names else "nothing"
    return "rescale" if has_rewrite and of_version == {"conf"} else "upgrade"


def _step_of_starting(seen: Observation) -> tuple[Step, str] | None:
    """Of a driver that has yet to show that it runs what is declared; None for one that has."""
    if seen.state == "launching" and seen.is_unlaunched:
        return "resume", "no driver was started for it yet"
    if seen.state == "launching" or (seen.state == "running" and not is_healthy(seen)):
        return "continue", "its driver has not committed anything yet"
    return None


def _step_of_ended(state: str, names: Set[str], *, has_rewrite: bool) -> tuple[Step, str]:
    is_state = f"it is {state}"
    if has_rewrite and state != "drained":
        return "refused", (
            f"{is_state}, and its state can be written anew only while it runs: apply it without the change of `state`"
            " first"
        )
    if names - _OF_NO_VERSION or state == "drained":
        return "deploy", is_state
    if state == "finished" and names:
        return "policy", ""
    if state == "finished":
        return "nothing", "it has finished; `streamstate resume` runs it again"
    return "resume", is_state
