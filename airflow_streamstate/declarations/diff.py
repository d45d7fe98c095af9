"""How a declared stream differs from what the home runs. Writes nothing."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.deploy.takeover import has_committed
from airflow_streamstate.controller.observe.observation import NOT_ENDED, Observation
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.wait.waiting import is_healthy
from airflow_streamstate.declarations.reader import (
    DeclaredStream,
    FileProblem,
    Lines,
    ReadFiles,
    check_script,
    deploy_request,
    file_values,
    rewrite_of,
    stream_values,
    upgrade_request,
    version_after,
)
from airflow_streamstate.declarations.stream_file import Place, StreamDeclaration, changes_of, place_of, reason_of
from airflow_streamstate.errors import HomeFormatError, InvalidRequestError, StreamNotFoundError, StreamStateError
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.policies import AlertRules
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.protocol.redaction import redact_text, secrets_of
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.version import Artifact, StreamTerms, Version
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import StoreOptions

# Finds, without Spark, that a new stream's script has run before: a checkpoint that it names holds committed batches.
#
# The driver looks at the checkpoint that a query really has, and refuses a start with nothing over a used one. This
# finds most of them before anything is launched: what the script writes as a literal, what its settings and its
# arguments name. Only for a stream that the home does not know: an adopted stream's script names its old checkpoint
# for ever.

_OPTION = "checkpointlocation"  # Spark's options know no case
_SETTING = "spark.sql.streaming.checkpointLocation"


def check_named_checkpoints(request: DeployRequest, options: StoreOptions) -> None:
    """Check that no checkpoint which the code and the settings of a new stream name has committed batches.

    A place that cannot be read is passed over: the driver looks again.

    Args:
        options: how to reach other stores than this machine's disk.

    Raises:
        InvalidRequestError: one has.
    """
    application, arguments = Path(request.version.script_path), request.version.arguments
    calls = tuple(_calls(application))
    queries = tuple(dict.fromkeys(name for call in calls for name in _query_name(call)))
    for uri in dict.fromkeys(_named(calls, arguments, request.version.conf)):
        plain = uri.rstrip("/").replace("s3a://", "s3://", 1)
        if not plain.startswith("/") and "://" not in plain:
            continue  # below a folder that only the driver knows
        try:
            used = next(_used(plain, queries, options), None)
        except (StreamStateError, OSError, ValueError):
            continue
        if used is not None:
            found, batch_id = used
            words = ["streamstate", "adopt", request.stream_id, "--checkpoint", found, "--stopped"]
            words += ["--app", str(application), *(("--", *arguments) if arguments else ())]
            raise InvalidRequestError(
                "a checkpoint that this new stream names holds batches of a query that ran without streamstate",
                stream_id=request.stream_id,
                checkpoint=found,
                committed_batch_id=batch_id,
                next_step=f"To continue where it stopped: `{shlex.join(words)}`, with the other settings of its file."
                " To write all rows a second time instead: start: fresh.",
            )


def _named(calls: Sequence[ast.Call], arguments: Sequence[str], conf: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in conf.items() if name == _SETTING)
    for at, argument in enumerate(arguments):
        name, is_assigned, value = argument.partition("=")
        if name.startswith("-") and "checkpoint" in name.lower():
            yield value if is_assigned else "".join(arguments[at + 1 : at + 2])
    for call in calls:
        yield from _location(call)


def _calls(application: Path) -> Iterator[ast.Call]:
    """The calls in a script; none where it cannot be read."""
    try:
        tree = ast.parse(application.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _location(call: ast.Call) -> Iterator[str]:
    """The literal of ``.option("checkpointLocation", …)``, ``conf.set(…)`` or a keyword ``checkpointLocation``."""
    texts = _texts(call.args)
    if len(call.args) == len(texts) == 2 and texts[0].lower() in (_OPTION, _SETTING.lower()):
        yield texts[1]
    yield from _texts([one.value for one in call.keywords if one.arg is not None and one.arg.lower() == _OPTION])


def _query_name(call: ast.Call) -> Iterator[str]:
    """The literal of ``.queryName(…)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "queryName":
        yield from _texts(call.args)


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _used(uri: str, queries: Sequence[str], options: StoreOptions) -> Iterator[tuple[str, int]]:
    """Each checkpoint with its last committed batch: the folder itself, or those of the script's queries in it.

    Not every folder in it: many jobs may keep their checkpoints side by side.
    """
    parent, _, name = uri.rpartition("/")
    store = open_store(parent or "/", options=options, makes_root=False)
    for folder in (name, *(f"{name}/{query}" for query in queries)):
        committed = Checkpoint(store, folder).commit_ids()
        if committed:
            yield f"{parent}/{folder}", committed[-1]


Step = Literal["deploy", "upgrade", "rescale", "resume", "stop", "policy", "continue", "nothing", "refused"]
Kind = Literal["new", "changed", "unchanged", "not declared", "refused"]
_KINDS: Mapping[Step, Kind] = {
    "nothing": "unchanged", "resume": "unchanged", "refused": "refused", "continue": "changed", "stop": "changed",
    "upgrade": "changed", "rescale": "changed", "policy": "changed", "deploy": "new",
}  # fmt: skip
_DIGEST_CHARACTERS = 12
_LONG_FACTS = ("traceback", "log_tail")
HAS_READ_ALL = "it has read all its input, and drained itself; `streamstate deploy` starts it again"


@dataclass(frozen=True)
class FieldDifference:
    """One field; ``before`` and ``after`` are "" for not there. Values of ``environment`` are not shown."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class StreamDifference(View):
    """How a stream differs from its declaration.

    Attributes:
        step: what ``apply`` would do. ``continue``: it completes an upgrade that is under way, or waits for a driver
            that has been launched, and has not committed anything yet. ``stop`` of a stream that is not declared:
            only where it prunes.
        state, deployment_id: of the stream now; "" where it is new.
        fields: what differs, by the names of files, with dots: ``conf.spark.x``, ``restart.on_failure``.
        reason: why nothing can be done, or what is under way; "" for nothing to report.
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

    @classmethod
    def from_json(cls, raw: object) -> StreamDifference:
        """The inverse. Raises InvalidRequestError: this is no such difference."""
        try:
            return _DIFFERENCE.validate_python(raw)
        except ValidationError:
            raise InvalidRequestError(
                "this is not what `diff` reports of a stream", next_step="Give the JSON of `streamstate diff --json`."
            ) from None


_DIFFERENCE = TypeAdapter(StreamDifference)


def compare(controller: Controller, declared: DeclaredStream, *, tries_again: bool = False) -> StreamDifference:
    """Compare a declared stream with what the home runs. Never raises for a stream that cannot be compared.

    Args:
        tries_again: a driver that has failed before it had committed anything is tried again as it is.
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
        plan_deadline_seconds: each changed version is rehearsed, for this long at most; None: no version is.
        report: gets each stream before it is compared.

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
        report = controller.plans.wait(view)
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
        if request.terms.start != "fresh":
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
    recorded = recorded_terms(register, AlertBook(controller.home.control(stream_id)).rules())
    found = (
        *differences(before, version),
        *_of_terms(StreamTerms, recorded, stream_values(declared), lambda text: text),
    )
    has_rewrite = rewrite_of(declared, before) is not None
    step, reason = _step(declared, seen, status, found, has_rewrite=has_rewrite)
    if step == "resume" and seen.state == "failed" and not found and not tries_again:
        step, reason = _step_of_failed(controller, seen, status)
    if any(one.name == "application" for one in found):
        check_script(declared)
    is_changed = any(changes_of(one.name) != "label" for one in found)
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


def recorded_terms(register: StreamRegister, rules: AlertRules) -> dict[str, Any]:
    """What is recorded of a stream, by the names of ``StreamTerms``."""
    return {
        "restart_policy": vars(register.restart_policy),
        "alert_rules": vars(rules),
        "retention": {} if register.retention is None else vars(register.retention),
        **vars(register.ownership),
    }


def differences(before: Version, after: Version) -> tuple[FieldDifference, ...]:
    """The fields in which two versions differ; secrets that are recorded as plain text are hidden."""
    secrets = [text for one in (before, after) for text in secrets_of(one.conf, one.arguments, one.environment)]
    return tuple(_of_terms(Version, vars(before), vars(after), lambda text: redact_text(text, secrets)))


def _of_terms(
    cls: type, before: Mapping[str, Any], after: Mapping[str, Any], shown: Callable[[str], str], within: Place = ()
) -> Iterator[FieldDifference]:
    """What differs of the terms of a class, and of what is recorded with them; each by the type of its value.

    Args:
        shown: a text without its secrets.
        within: where in a file the terms are.
    """
    terms = {one.name: one for one in terms_of(cls)}
    for name in terms if within == () else dict.fromkeys((*terms, *before, *after)):
        one, old, new = terms.get(name), before.get(name), after.get(name)
        place = (*within, name) if one is None else place_of(one, within)
        if one is not None and one.kind == "part":
            yield from _of_terms(one.part, by_name(old), by_name(new), shown, place)
        elif one is not None and one.declared.is_secret:
            for each in _of_value(".".join(place), old, new, lambda text: text):
                yield FieldDifference(each.name, "…" if each.before else "", "… (another value)" if each.after else "")
        else:
            yield from _of_value(".".join(place), old, new, shown)


def by_name(part: object) -> Mapping[str, Any]:
    """The values of a part, which may be an object with them; none of one that is not there."""
    return {} if part is None else part if isinstance(part, Mapping) else vars(part)


def _of_value(name: str, old: Any, new: Any, shown: Callable[[str], str]) -> Iterator[FieldDifference]:
    if old == new:
        return
    if isinstance(old or new, Mapping):
        for key in sorted({*(old or {}), *(new or {})}):
            texts = [(_text(one[key]) or '""') if key in one else "" for one in (old or {}, new or {})]
            if texts[0] != texts[1]:
                yield FieldDifference(f"{name}.{key}", *map(shown, texts))
    elif isinstance(old or new, Artifact):
        if (old and old.sha256) != (new and new.sha256):
            yield FieldDifference(name, *("" if one is None else _short(one) for one in (old, new)))
    elif isinstance(old or new, tuple):
        yield from _of_lists(name, old or (), new or (), shown)
    elif _text(old) != _text(new):
        yield FieldDifference(name, shown(_text(old)), shown(_text(new)))


def _of_lists(
    name: str, old: Sequence[Artifact | str], new: Sequence[Artifact | str], shown: Callable[[str], str]
) -> Iterator[FieldDifference]:
    """Files by their names, texts as one line."""
    files = [{one.name: one.sha256 for one in each if isinstance(one, Artifact)} for each in (old, new)]
    for each in sorted({*files[0], *files[1]}):
        digests = [one.get(each, "")[:_DIGEST_CHARACTERS] for one in files]
        if files[0].get(each) != files[1].get(each):
            yield FieldDifference(f"{name}.{each}", *digests)
    texts = [[one for one in each if isinstance(one, str)] for each in (old, new)]
    if texts[0] != texts[1]:
        yield FieldDifference(name, *(shlex.join(map(shown, one)) for one in texts))


def _short(artifact: Artifact) -> str:
    return f"{artifact.name} {artifact.sha256[:_DIGEST_CHARACTERS]}"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _step(
    declared: DeclaredStream,
    seen: Observation,
    status: StreamStatus,
    found: Sequence[FieldDifference],
    *,
    has_rewrite: bool,
) -> tuple[Step, str]:
    """What makes the stream as declared, and why, if that needs an explanation."""
    if seen.register.retirement is not None:
        return "refused", "the stream is retired; `streamstate deploy --revive` starts it again"
    if status.upgrade:
        return "continue", status.upgrade
    is_alive, is_to_run = status.state in NOT_ENDED, declared.declaration.desired_state == "running"
    of_version = {one.name for one in found if changes_of(one.name) in ("code", "version")}
    of_stream = any(changes_of(one.name) == "stream" for one in found)
    rules: Step = "policy" if of_stream else "nothing"
    if not is_to_run and not is_alive:
        return rules, ""
    if not is_to_run:
        return "stop", ""
    if status.state == "lost":
        return "refused", f"its driver is lost: {status.why}"
    if status.state == "silent":
        ways = f"`streamstate kill {status.stream_id}` ends it, `streamstate resume {status.stream_id}` starts it again"
        return "refused", f"{status.why}; {ways}"
    if is_alive and of_version:
        is_state_alone = has_rewrite and all(name.startswith("conf.") for name in of_version)
        return "rescale" if is_state_alone else "upgrade", ""
    if is_alive:
        return _step_of_starting(seen) or (rules, "")
    if seen.has_drained_itself and not of_version:
        return rules, "" if of_stream else HAS_READ_ALL
    return _step_of_ended(str(status.state), bool(of_version), rules, has_rewrite=has_rewrite)


def _step_of_starting(seen: Observation) -> tuple[Step, str] | None:
    """Of a driver that has yet to show that it runs what is declared; None for one that has."""
    if seen.state == "launching" and seen.is_unlaunched:
        return "resume", "no driver was started for it yet"
    if seen.state == "launching" or (seen.state == "running" and not is_healthy(seen)):
        return "continue", "its driver has not committed anything yet"
    return None


def _step_of_ended(state: str, is_other: bool, rules: Step, *, has_rewrite: bool) -> tuple[Step, str]:
    is_state = f"it is {state}"
    if has_rewrite and state != "drained":
        return "refused", (
            f"{is_state}, and its state can be rewritten only while it runs: apply it without the change of `state`"
            " first"
        )
    if is_other or state == "drained":
        return "deploy", is_state
    if state == "finished":
        return rules, "" if rules == "policy" else "it has finished; `streamstate resume` runs it again"
    return "resume", is_state


# What else is wrong with declared streams, found without a home: by the checks that a deploy would make.
#
# The checks report what is wrong, and not always in which field of a file. That is found by leaving fields out, one
# after the other: the one without which the refusal is gone, or is another one, is what it was about.

_ANY_HOME = "file:///"
_MOST_PROBLEMS = 20
_LEFT_OUT = None
"""No list of a stream has such a value."""
_Place = tuple[str, ...]


def checked(read: ReadFiles) -> ReadFiles:
    """The same, without the streams that a deploy would refuse, and with what it would refuse them for."""
    streams, problems = [], list(read.problems)
    for one in read.streams:
        found = _problems_of(one)
        problems += found
        if not found:
            streams.append(one)
    return ReadFiles(tuple(streams), tuple(problems))


def _problems_of(declared: DeclaredStream) -> list[FileProblem]:
    refusal = _refusal(declared)
    if refusal is None:
        return []
    values, lines = file_values(declared.path)
    found: list[FileProblem] = []
    while refusal is not None and len(found) < _MOST_PROBLEMS:
        place, after = _place_of(declared, values, refusal)
        found.append(_problem(declared.path, place, lines, refusal))
        if after is None:
            break
        values = after
        refusal = _refusal_of(declared, values)
    return found


def _place_of(
    declared: DeclaredStream, values: dict[str, Any], refusal: StreamStateError
) -> tuple[_Place, dict[str, Any] | None]:
    """The field that the refusal is about, and the values without it; None where it cannot be left out."""
    for place in _places(values, ()):
        less = _without(values, place)
        try:
            another = _refusal_of(declared, less)
        except ValidationError:
            continue  # it is needed
        if another is None or another.to_json() != refusal.to_json():
            return place, less
    return ("application",), None


def _places(values: Any, at: _Place) -> Iterator[_Place]:
    """Each value, what is within it first."""
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for name, value in inside:
        yield from _places(value, (*at, str(name)))
        yield (*at, str(name))


def _without(values: dict[str, Any], place: _Place) -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(values)
    within: Any = found
    for name in place[:-1]:
        within = within[int(name) if isinstance(within, list) else name]
    if isinstance(within, list):
        within[int(place[-1])] = _LEFT_OUT  # the others keep their places
    else:
        del within[place[-1]]
    return found


def _refusal_of(declared: DeclaredStream, values: Mapping[str, Any]) -> StreamStateError | None:
    """Raises ValidationError."""
    return _refusal(replace(declared, declaration=StreamDeclaration.model_validate(_left(values))))


def _left(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _left(value) for name, value in values.items()}
    return [_left(one) for one in values if one is not _LEFT_OUT] if isinstance(values, list) else values


def _refusal(declared: DeclaredStream) -> StreamStateError | None:
    """What a deploy, or an upgrade to it, would be refused for; None for nothing."""
    try:
        request = deploy_request(declared, _ANY_HOME)
        upgrade_request(declared, _ANY_HOME, request.version)
        check_script(declared)
    except StreamStateError as error:
        return error
    return None


def _problem(path: Path, place: _Place, lines: Lines, refusal: StreamStateError) -> FileProblem:
    return FileProblem(path, lines.of(place), ".".join(place), reason_of(refusal))
