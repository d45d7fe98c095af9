"""The driver's main, ``spark-submit … runner.py -- driver.json``: becomes an attempt and runs the script."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.objects import OF_DRIVER, TO_DRIVER, FeedWriter
from airflow_streamstate.control.presence import GuardedHome, HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.driver.attempt.callbacks import OF_THIS_PROCESS
from airflow_streamstate.driver.attempt.read_recorder import OF_THIS_SCRIPT
from airflow_streamstate.driver.attempt.reports import say_to_driver_log
from airflow_streamstate.driver.config import DriverConfig, DriverKind, read_driver_config
from airflow_streamstate.driver.rehearsal.committed_batches import RehearsedAttempt
from airflow_streamstate.driver.rehearsal.rehearsal_run import Rehearsing, oversee
from airflow_streamstate.driver.rehearsal.replay_run import Replaying
from airflow_streamstate.driver.rehearsal.script_failures import debug_breakpoints
from airflow_streamstate.driver.script import (
    FoundModules,
    ScriptEnd,
    find_beside,
    keep_surroundings,
    origins_of,
    run_script,
)
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS, ScriptFailure
from airflow_streamstate.driver.spark.connect_refusal import refuse_connect_environment, refuse_connect_writers
from airflow_streamstate.driver.standby import WaitingDriver
from airflow_streamstate.driver.start.claim import check_checkpoints, check_home, need_spec, patiently
from airflow_streamstate.errors import DataError, FencedError, InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import redact_text, secrets_of, shortened
from airflow_streamstate.protocol.scratch import Handover, Replay, ScratchRun
from airflow_streamstate.snapshot.state_tables import PROGRESS, RESULT, StateOrder
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import SERVER_SCHEMES, s3a_uri, secrets_in

if TYPE_CHECKING:
    from airflow_streamstate.driver.spark.interception import Interception


# Ends a python whose JVM is gone.
#
# ``spark-submit`` is a JVM that starts python. If that JVM is killed, python continues as an orphan, and its agent
# would write heartbeats for a query that no longer runs.

WATCH_SECONDS = 0.5
LOST_JVM_STATUS = 143
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


def is_child_of_jvm(environment: Mapping[str, str]) -> bool:
    """Whether a JVM started this process, as ``spark-submit`` does."""
    return GATEWAY_VARIABLE in environment


def watch_parent(
    clock: Clock, end_process: Callable[[int], None], parent_id: Callable[[], int] = os.getppid
) -> threading.Thread:
    """Start a daemon thread that calls ``end_process(LOST_JVM_STATUS)`` once this process has another parent."""
    first = parent_id()

    def watch() -> None:
        while parent_id() == first:
            clock.sleep(WATCH_SECONDS)
        say_to_driver_log("Spark's JVM is gone; this driver ends")
        end_process(LOST_JVM_STATUS)

    thread = threading.Thread(target=watch, name="streamstate-watchdog", daemon=True)
    thread.start()
    return thread


# A driver that reads the state in forks of snapshots, and does not run the script.
#
# It writes one JSON object, the result or the error, into the folder of its launch.

MAX_WORDS_CHARACTERS = 1_000
LATE_STATUS = 3

Report = Callable[[str], None]
Read = Callable[[StateOrder, Report], dict[str, Any]]


def read_state(
    config: DriverConfig, order: StateOrder, clock: Clock, end_process: Callable[[int], None], read: Read | None = None
) -> int:
    """Read what the order asks for; the exit status.

    Args:
        end_process: ends this process with a status, also while threads run.
        read: None for Spark.
    """
    if is_child_of_jvm(os.environ):
        watch_parent(clock, end_process)

    def end() -> None:
        clock.sleep(order.deadline_seconds)
        end_process(LATE_STATUS)

    threading.Thread(target=end, name="streamstate-deadline", daemon=True).start()
    folder = Path(order.folder)
    try:
        answer = {"result": (read or _read_by_spark)(order, lambda words: _write(folder / PROGRESS, words))}
    except StreamStateError as error:
        answer = {"error": error.to_json()}
    except Exception as error:
        answer = {"error": _unread(error, config).to_json()}
    _write(folder / RESULT, json.dumps(answer))
    return 0 if "result" in answer else 1


def _read_by_spark(order: StateOrder, report: Report) -> dict[str, Any]:
    report("Spark starts")
    from pyspark.sql import SparkSession

    from airflow_streamstate.driver.spark.state_reading import check_export, compare, export, look

    spark = SparkSession.builder.getOrCreate()
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        if order.verb == "diff":
            return {"queries": compare(spark, order, report)}
        if order.export is not None:
            check_export(spark, order.export)
        found = {} if order.before else look(spark, order, report)
        return {"queries": found, "export": None if order.export is None else export(spark, order, report)}
    finally:
        spark.stop()


def _unread(error: Exception, config: DriverConfig) -> StreamStateError:
    words = f"{type(error).__name__}: {error}"
    if not isinstance(error, ImportError):
        from airflow_streamstate.driver.spark.jvm import spark_words

        words = spark_words(error)
    secrets = secrets_of({}, (), looked_up=config.secrets)
    return DataError(
        "Spark could not read this state",
        reason=shortened(words, secrets, MAX_WORDS_CHARACTERS, in_a_line=True),
        next_step="Check the snapshot with `streamstate snapshot verify`, and read it with a Spark that supports its"
        " formats.",
    )


def _write(path: Path, text: str) -> None:
    """Written atomically, readable for the owner alone: it may hold rows of the state."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


Redact = Callable[[str], str]
FAILED_STATUS = 1
USAGE_STATUS = 2
LOST_JVM_SECONDS = 10.0
REHEARSAL_VARIABLE = "STREAMSTATE_REHEARSAL"
"""Set to 1 while a script is rehearsed, so that it can leave out what must not happen then."""
REPLAY_VARIABLE = "STREAMSTATE_REPLAY"
"""Set to 1, too, while recorded batches are replayed."""


def hide_in_uncaught(redacted: Redact) -> None:
    """Hide secrets in what Python prints of uncaught errors: of the main thread, of others, and of finalizers.

    Call it again when more secrets become known. An error without a secret goes to the hook that was set before.
    """
    in_main, in_thread, unraisable = sys.excepthook, threading.excepthook, sys.unraisablehook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not _printed_redacted(redacted, "", kind, error, trace):
            in_main(kind, error, trace)

    def thread_excepthook(args: threading.ExceptHookArgs) -> None:
        # SystemExit of a thread is silent.
        name = threading.get_ident() if args.thread is None else args.thread.name
        lead = f"Exception in thread {name}:\n"
        if args.exc_type is SystemExit or not _printed_redacted(
            redacted, lead, args.exc_type, args.exc_value, args.exc_traceback
        ):
            in_thread(args)

    def unraisablehook(args: sys.UnraisableHookArgs) -> None:
        words = args.err_msg or "Exception ignored in"
        lead = f"{words}: {_repr(args.object)}\n" if args.object is not None else f"{words}:\n"
        if not _printed_redacted(redacted, lead, args.exc_type, args.exc_value, args.exc_traceback):
            unraisable(args)

    sys.excepthook, threading.excepthook, sys.unraisablehook = excepthook, thread_excepthook, unraisablehook


def _printed_redacted(
    redacted: Redact,
    lead: str,
    kind: type[BaseException],
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool:
    """Print an error without its secrets; False, and nothing printed, where it holds none."""
    text = lead + "".join(traceback.format_exception(kind, error, trace))
    shown = redacted(text)
    if shown == text:
        return False
    if sys.stderr is not None:
        sys.stderr.write(shown)
        sys.stderr.flush()
    return True


def _repr(thing: object) -> str:
    try:
        return repr(thing)
    except Exception:
        return "<object repr() failed>"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one driver; the exit status.

    Args:
        arguments: ``["--", path of driver.json]``; None for those of the process.
    """
    given = [argument for argument in (sys.argv[1:] if arguments is None else arguments) if argument != "--"]
    if len(given) != 1:
        say_to_driver_log("usage: runner.py -- DRIVER_JSON")
        return USAGE_STATUS
    secrets: tuple[str, ...] = ()
    os.environ.pop("PYTHONSAFEPATH", None)  # meant for the executors' processes, which have it from the JVM
    try:
        config = with_own_credentials(read_driver_config(Path(given[0])))
        secrets = config.secrets
        known = secrets_of({}, (), looked_up=secrets)
        hide_in_uncaught(lambda text: redact_text(text, known))
        return _LIVES[config.kind](config, SYSTEM_CLOCK)
    except StreamStateError as error:
        _say(error, secrets)
        return FENCED_STATUS if isinstance(error, FencedError) else FAILED_STATUS


def with_own_credentials(config: DriverConfig) -> DriverConfig:
    """The configuration with the credentials of this driver's environment among its secrets.

    The environment gets what its launcher could not set first.
    """
    os.environ.update(config.environment)
    return replace(config, secrets=(*config.secrets, *secrets_in(os.environ)))


def run_driver(config: DriverConfig, clock: Clock) -> int:
    """Run the driver that this configuration describes; its exit status.

    Raises:
        FencedError: this attempt is not, or no longer, the current one.
        StreamStateError: the driver cannot become this attempt. The script has not run.
    """
    attempt_life, agent = begin_attempt(config, clock)
    found = FoundModules(clock)
    found.belong_to(attempt_life.attempt)
    try:
        return attempt_life.script_ended(_run_script(config, attempt_life, found, clock))
    finally:
        agent.stop()


def begin_attempt(config: DriverConfig, clock: Clock) -> tuple[AttemptLife, Agent]:
    """Become the attempt that this configuration names, with its agent running; raises as ``run_driver``."""
    if is_child_of_jvm(os.environ):
        watch_parent(clock, end_process)
    return _become_attempt(config, *_open_stores(config, clock), clock)


def run_reading(config: DriverConfig, clock: Clock) -> int:
    """Read the state that the configuration orders; raises MalformedMessageError for another order."""
    return read_state(config, StateOrder.from_json(config.reading or {}), clock, end_process)


def run_scratch(config: DriverConfig, clock: Clock) -> int:
    """Rehearse or replay the script, as its record asks, and record the verdict; 0 if the script came to its end.

    If the record of a rehearsal asks for it and the state does not fit, a second pass tries each query as after a
    drain. If it has ``waits_until`` and the verdict is good, a further pass waits at its first ``start()`` for a
    handover.

    Raises:
        DataError: there is no such run.
        StreamStateError: its record cannot be read. The script has not run.
    """
    if is_child_of_jvm(os.environ):
        watch_parent(clock, end_process)
    control, checkpoints = _open_stores(config, clock)
    scratch = patiently(clock, lambda: control.scratch_run(config.deployment_id))
    if scratch is None:
        raise DataError("there is no record of this scratch run", run_id=config.deployment_id)
    is_replay = isinstance(scratch.what, Replay)
    spec, folder = need_spec(control, config.deployment_id, clock), _folder_of(checkpoints.uri)
    attempt = RehearsedAttempt(
        control,
        checkpoints,
        spec,
        config.attempt,
        clock,
        lambda key: f"{folder}/{key}",
        looked_up=config.secrets,
        open_place=partial(open_store, options=config.store_options, clock=clock),
    )
    end = ScriptEnd()
    rehearsing = (Replaying if is_replay else Rehearsing)(attempt, scratch, _spark_words, end.ask)
    found = FoundModules(clock)
    found.belong_to(attempt)
    hide_in_uncaught(attempt.reporter.redacted)
    put_back = keep_surroundings()
    os.environ[REHEARSAL_VARIABLE] = "1"
    if is_replay:
        os.environ[REPLAY_VARIABLE] = "1"
    threading.Thread(target=oversee, args=(rehearsing, end_process), name="streamstate-oversee", daemon=True).start()
    status = rehearsing.script_ended(_run_script(config, rehearsing, found, clock, end=end))
    if rehearsing.begins_seeds():
        put_back()
        os.environ[REHEARSAL_VARIABLE] = "1"
        status = rehearsing.script_ended(_run_script(config, rehearsing, found, clock, is_again=True, end=end))
    if not rehearsing.goes_on():
        return status
    put_back()
    # Where its queries were tried as after a drain, it is warmed on what they were tried on.
    return _run_waiting(config, clock, rehearsing.attempt, scratch, found)


def _run_waiting(
    config: DriverConfig, clock: Clock, attempt: RehearsedAttempt, scratch: ScratchRun, found: FoundModules
) -> int:
    """The pass that waits for a handover, in the same process and JVM."""
    agents: list[Agent] = []

    def become(handover: Handover) -> AttemptLife:
        this = replace(
            config, deployment_id=handover.deployment_id, attempt=handover.attempt, launch_key=handover.launch_key
        )
        attempt_life, agent = _become_attempt(this, attempt.control, attempt.checkpoints, clock)
        agents.append(agent)
        found.belong_to(attempt_life.attempt)
        return attempt_life

    waiting = WaitingDriver(attempt, scratch, become, end_process, config.bell(TO_DRIVER))
    threading.Thread(target=oversee, args=(waiting, end_process), name="streamstate-oversee", daemon=True).start()
    try:
        return waiting.script_ended(_run_script(config, waiting, found, clock, is_again=True))
    finally:
        for agent in agents:
            agent.stop()


_LIVES: Mapping[DriverKind, Callable[[DriverConfig, Clock], int]] = {
    "attempt": run_driver,
    "scratch": run_scratch,
    "reading": run_reading,
}


def _spark_words(error: BaseException) -> str:
    from airflow_streamstate.driver.spark.jvm import spark_words

    return spark_words(error)


def _run_script(
    config: DriverConfig,
    decider: AttemptLife | Rehearsing | WaitingDriver,
    found: FoundModules,
    clock: Clock,
    *,
    is_again: bool = False,
    end: ScriptEnd | None = None,
) -> ScriptFailure | None:
    OF_THIS_PROCESS.begin()
    try:
        if config.has_witness:
            check_checkpoints(decider.attempt.checkpoints, config.stream_id, config.deployment_id)
        # After the claim: importing pyspark takes a second, during which the agent reads commands.
        interception = intercept(decider, clock, is_again=is_again)
        from airflow_streamstate.driver.spark.jvm import jvm_is_gone
    except (InvalidRequestError, ImportError) as error:
        _say(error, config.secrets)
        return ScriptFailure(error=f"{type(error).__name__}: {error}", traceback="", exit_status=FAILED_STATUS)

    def before_report(error: BaseException) -> None:
        # The JVM is gone: the script's error shows nothing about its queries, and the watchdog ends this process.
        if is_child_of_jvm(os.environ) and any(jvm_is_gone(origin) for origin in origins_of(error)):
            clock.sleep(LOST_JVM_SECONDS)
        interception.tell_of_failed_script()
        if isinstance(decider, Replaying):
            decider.debug(error)

    if isinstance(decider, Replaying):
        _watch_functions(decider)

    if config.script_path is not None:
        find_beside(config.script_path, config.application, config.modules, found.keep)
    see_reads(config, decider.attempt.spec)
    redacted = decider.attempt.reporter.redacted
    return run_script(config.application, config.arguments, before_report, redacted, config.script_path, end)


def see_reads(config: DriverConfig, spec: DeploymentSpec) -> None:
    """See from now on what the script of this process reads."""
    script = config.application if config.script_path is None else config.script_path
    OF_THIS_SCRIPT.begin(script, config.modules, config.arguments, [file.name for file in spec.version.files])


def _watch_functions(replaying: Replaying) -> None:
    """Report the values where a function of the script fails in a worker, and open a debugger if one is asked for."""
    from airflow_streamstate.driver.spark.python_daemon import run_workers_with_values

    why_not = run_workers_with_values(replaying.debugger)
    if why_not:
        replaying.attempt.reporter.note(why_not)
    if replaying.debugger:
        debug_breakpoints(replaying.debugger)


def intercept(
    decider: AttemptLife | Rehearsing | WaitingDriver, clock: Clock, *, is_again: bool = False
) -> Interception:
    """Intercept the starts of queries, in a fresh session where the script runs again, and refuse Spark Connect.

    Raises:
        InvalidRequestError: the environment asks for Spark Connect.
        ImportError: there is no pyspark.
    """
    refuse_connect_environment(os.environ)
    from airflow_streamstate.driver.spark.interception import Interception, RehearsedInterception, forget_session

    if is_again:
        forget_session()
    interception: Interception
    if isinstance(decider, Rehearsing):
        interception = RehearsedInterception(decider, clock)
    else:
        interception = Interception(decider, clock)
    interception.install()
    refuse_connect_writers()
    return interception


def _say(error: Exception, secrets: Iterable[str]) -> None:
    """Log the error that ends a driver which has no reporter."""
    say_to_driver_log(redact_text(str(error), secrets_of({}, (), looked_up=secrets)))


def _open_stores(config: DriverConfig, clock: Clock) -> tuple[StreamControl, Store]:
    home = open_store(config.home_uri, options=config.store_options, clock=clock, makes_root=False)
    checkpoints = home
    if config.checkpoints_uri != config.home_uri:
        checkpoints = open_store(config.checkpoints_uri, options=config.store_options, clock=clock)
    presence = HomePresence(home, clock, is_expected=True)
    if config.home_id is not None:
        check_home(presence, config.home_id)
    feed = FeedWriter(GuardedHome(presence), clock)
    return StreamControl(home, config.stream_id, clock, presence, feed=feed), checkpoints


def _become_attempt(
    config: DriverConfig, control: StreamControl, checkpoints: Store, clock: Clock
) -> tuple[AttemptLife, Agent]:
    """Claim, hide the secrets of the spec, start the agent."""
    folder, open_place = _folder_of(checkpoints.uri), partial(open_store, options=config.store_options, clock=clock)
    spec = need_spec(control, config.deployment_id, clock)
    attempt_life = AttemptLife(
        control,
        checkpoints,
        spec,
        config.attempt,
        clock,
        lambda key: f"{folder}/{key}",
        looked_up=config.secrets,
        open_place=open_place,
    )
    attempt_life.attempt.reporter.when_written = config.bell(OF_DRIVER).ring
    attempt_life.claim(config.launch_key, socket.gethostname(), os.getpid())
    hide_in_uncaught(attempt_life.attempt.reporter.redacted)
    agent = Agent(attempt_life, end_process, open_place, config.launch_folder)
    agent.start()
    return attempt_life, agent


def _folder_of(checkpoints_uri: str) -> str:
    """The URI of the checkpoints for Spark; raises InvalidRequestError where Spark has no file system for it."""
    if checkpoints_uri.startswith(SERVER_SCHEMES):
        return s3a_uri(checkpoints_uri)
    if "://" in checkpoints_uri and not checkpoints_uri.startswith("file://"):
        raise InvalidRequestError(
            "checkpoints must be in a folder of this machine, or on S3, GCS or Azure",
            checkpoints_uri=checkpoints_uri,
            next_step="Set checkpoints_uri to a folder, s3://…, gs://… or abfss://…; the home may be elsewhere.",
        )
    return "file://" + str(Path(checkpoints_uri.removeprefix("file://")).resolve())


def end_process(status: int) -> None:
    """End this process now, also while threads run; stdout and stderr are flushed."""
    for stream in (sys.stdout, sys.stderr):
        # A reader that is gone, or a thread that holds the buffer, must not keep the process alive.
        flusher = threading.Thread(target=_flush, args=(stream,), daemon=True)
        flusher.start()
        flusher.join(1.0)
    os._exit(status)


def _flush(stream: object) -> None:
    try:
        stream.flush()  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return


if __name__ == "__main__":
    sys.exit(main())
