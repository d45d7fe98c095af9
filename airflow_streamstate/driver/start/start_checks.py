"""Checks before a start: the sink (Law 14), the sources, settings in the script, a checkpoint that it names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import Position
from airflow_streamstate.connectors.sink import known_sinks
from airflow_streamstate.connectors.source import NO_OFFSET, LostInput, Preflight
from airflow_streamstate.driver.attempt.answers import note_once
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import need_current, retry_until_fenced
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import OwnCheckpoint, StartableQuery
from airflow_streamstate.driver.attempt.query_sources import SourceBook
from airflow_streamstate.driver.attempt.reports import MAX_REASON_CHARACTERS
from airflow_streamstate.errors import InputLostError, StartRefusedError
from airflow_streamstate.protocol.positions import SourceIdentity
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.redaction import HIDDEN, is_reference, is_secret_name
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.version import CommandLine, HandoverTerms, Version, command_line

# Refuses to start a query with nothing whose own checkpoint holds committed batches: it ran without streamstate.
#
# Its first batch would read again what is written already. Only a query that the stream has never run is looked at:
# the script keeps its ``checkpointLocation`` for ever, and nothing runs there any more once the stream has moved on.

_READ_BY_STORES = ("s3://", "gs://", "az://", "abfs://", "abfss://", "/")


def check_used_checkpoint(attempt: Attempt, name: str, startable: StartableQuery) -> tuple[str, ...]:
    """Check that a query which is about to start with nothing has no used checkpoint of its own; remarks.

    Raises:
        StartRefusedError: it has, and the user did not ask for a start with nothing.
        UnavailableError: Spark's JVM does not answer.
    """
    start = attempt.spec.start
    if start.begins_anew:
        return ()
    own = startable.own_checkpoint()
    if own is None or (own.batch_id is None and not own.unread_reason):
        return ()
    if own.unread_reason:
        remark = (
            f"its own checkpoint {own.uri} could not be read ({own.unread_reason}): where it holds batches of a query"
            " that ran without streamstate, their rows are written a second time"
        )
        attempt.reporter.note(f"query {name}: {remark}", query=name)
        return (remark,)
    raise StartRefusedError(
        "this query ran without streamstate before, and a start with nothing would write its rows a second time",
        query_name=name,
        checkpoint=own.uri,
        committed_batch_id=own.batch_id,
        committed_at=own.written_at,
        next_step=_way_on(attempt, name, startable, own),
    )


def _way_on(attempt: Attempt, name: str, startable: StartableQuery, own: OwnCheckpoint) -> str:
    spec = attempt.spec
    if spec.start.predecessor_id is not None and spec.start.mode != "fresh":
        return (
            f"To start with nothing, give query {name} a checkpointLocation that no query has used. To continue where"
            " it is, leave it out of this script, and adopt it as a stream: `streamstate adopt NEW_STREAM --checkpoint"
            f" {_assigned(name, own.uri)} --app SCRIPT`."
        )
    frees = ""
    if attempt.queries:
        ran = ", ".join(sorted(attempt.queries.names()))
        frees = (
            f"This script has started {ran} before: first `streamstate retire {attempt.stream_id} --delete` removes"
            " the stream with the state of that. "
        )
    return f"{frees}{_adopting(spec, attempt, name, own)} {_anew(name, startable)}"


def _adopting(spec: DeploymentSpec, attempt: Attempt, name: str, own: OwnCheckpoint) -> str:
    is_read = own.uri.startswith(_READ_BY_STORES)
    uri = own.uri if is_read else "FOLDER"
    words = adopt_command(spec, attempt.control.home.uri, name, uri)
    if is_read:
        said = f"To continue where it is: `{words}`. Leave out --stopped while the old job still runs."
    else:
        said = (
            "No store of streamstate reads its checkpoint there: once the old job has ended, copy the folder to a disk"
            f" or a bucket. To continue from the copy: `{words}`."
        )
    if own.others:
        said += (
            " For each other query of the script add --checkpoint NAME=URI; batches are also in"
            f" {', '.join(own.others)}."
        )
    left_out = _given(spec.version, attempt.control.home.uri).left_out
    left = [f"{option} ({', '.join(names)})" for option, names in left_out.items()]
    if left:
        said += f" Add the paths of {' and '.join(left)}."
    return said


def _anew(name: str, startable: StartableQuery) -> str:
    if startable.held_batches(None, 0).batch_ids:
        return (
            f"To start at the beginning instead, give query {name} a new output, which its sink needs, and deploy with"
            " --start fresh."
        )
    return "To start at the beginning instead, deploy with --start fresh: all rows are written again."


def adopt_command(spec: DeploymentSpec, home_uri: str, name: str, uri: str) -> str:
    """The `streamstate adopt` that continues this query with the code and settings of this deployment.

    With ``--stopped``: if that is wrong, the log moves, and the adoption is refused.
    """
    version, start = spec.version, HandoverTerms(allow_new_queries=spec.start.allow_new_queries)
    given = _given(version, home_uri)
    words = ["streamstate", "adopt", spec.stream_id, "--checkpoint", _assigned(name, uri), "--stopped"]
    words += ["--app", version.script_path or version.application.name]
    words += [*given.options, *command_line(start, verb="adopt").options]
    return shlex.join([*words, "--", *given.words] if given.words else words)


def _given(version: Version, home_uri: str) -> CommandLine:
    """The options of ``adopt`` that give this version; its modules are found by its script."""
    base = Version(version.application, modules=version.modules, settings=default_settings(home_uri))
    return command_line(version, base, "adopt")


def _assigned(name: str, uri: str) -> str:
    """By default a query has the name of its folder."""
    return uri if uri.rpartition("/")[2] == name else f"{name}={uri}"


CANNOT_TELL = "its sink does not know which batches it holds"


def check_sink(attempt: Attempt, logical: LogicalQuery, position: Position, *, is_fresh: bool) -> tuple[str, ...]:
    """Check that the sink holds no batch id that is not planned yet, and prepare it for the next ones; remarks.

    A planned batch is not checked: it runs over the same bounds, so a sink that holds it skips just what it has.

    Raises:
        StartRefusedError: the sink holds ids that this start would use again.
        InvalidRequestError: it is a table that cannot be created.
        FencedError: this attempt was replaced.
        UnavailableError: the sink could not be prepared.
    """
    for problem in known_sinks().problems:
        note_once(attempt, attempt.reporter.shortened(problem, MAX_REASON_CHARACTERS, in_a_line=True))
    startable = logical.startable
    for remark in startable.need_table():
        note_once(attempt, remark)
    next_planned = position.barrier_id  # the id above the last planned batch
    query_id = retry_until_fenced(attempt, "the checkpoint", logical.checkpoint.query_id)
    held = startable.held_batches(query_id, next_planned)
    if held.batch_ids:
        need_current(attempt)  # the ids may be a successor's
        raise _refusal(attempt, logical, next_planned, held.batch_ids, is_fresh=is_fresh)
    if held.unknown_reason:
        why = attempt.reporter.shortened(held.unknown_reason, MAX_REASON_CHARACTERS, in_a_line=True)
        attempt.reporter.say(f"query {logical.name}: {CANNOT_TELL}: {why}")
    return startable.prepare_sink(position.next_batch_id)


def check_sink_before_flush(attempt: Attempt, logical: LogicalQuery) -> None:
    """As ``check_sink`` for a query that is flushed without having run, waiting for the store.

    A flush that an earlier attempt started is not checked: it runs again over the same bounds.
    """
    checkpoint = logical.checkpoint
    position = retry_until_fenced(attempt, "the log", lambda: checkpoint.position() if checkpoint.exists() else None)
    if position is not None and not position.barriers:
        for word in check_sink(attempt, logical, position, is_fresh=False):
            attempt.reporter.note(word, query=logical.name)


def _refusal(
    attempt: Attempt, logical: LogicalQuery, next_planned: int, batch_ids: Sequence[int], *, is_fresh: bool
) -> StartRefusedError:
    snapshot_id = attempt.spec.start.snapshot_id
    if is_fresh:
        next_step = f"Write to a new output; or continue the query that wrote there: {_going_on(attempt, logical)}."
    elif snapshot_id is not None and logical.startable.undo_means() == "exact by undo":
        next_step = (
            f"`streamstate rollback {attempt.stream_id} --snapshot {snapshot_id}` takes those batches out of it and"
            " runs their input again; or start from the snapshot at the end of the deployment that wrote them."
        )
    else:
        next_step = (
            "Write to a new output, start from the snapshot at the end of the deployment that wrote those batches, or"
            " take those batches out of the output first (docs/how-to/sinks.md shows how for each sink)."
        )
    return StartRefusedError(
        "the sink holds batch ids that this start would use again, and would skip them with all their new rows",
        query_name=logical.name,
        sink=logical.startable.sink_place(),
        held_batches=listed(batch_ids),
        next_batch_id=next_planned,
        next_step=next_step,
    )


def _going_on(attempt: Attempt, logical: LogicalQuery) -> str:
    """How batch ids continue after a fresh start was refused, by what is known of who wrote there."""
    if attempt.control.snapshot_ids():
        return f"`streamstate rollback {attempt.stream_id}` with --snapshot goes back to a snapshot of this stream"
    own = logical.startable.own_checkpoint()
    uri = "FOLDER" if own is None or own.batch_id is None else own.uri
    words = adopt_command(attempt.spec, attempt.control.home.uri, logical.name, uri)
    return f"where it ran without streamstate, `{words}`" + (
        ", with its checkpointLocation as FOLDER" if uri == "FOLDER" else ""
    )


def listed(batch_ids: Sequence[int]) -> str:
    """Ids as text: ``14 to 17``, or the first of them one by one."""
    if len(batch_ids) > 1 and batch_ids[-1] - batch_ids[0] == len(batch_ids) - 1:
        return f"{batch_ids[0]} to {batch_ids[-1]}"
    shown = ", ".join(str(batch_id) for batch_id in batch_ids[:10])
    return shown if len(batch_ids) <= 10 else f"{shown}, … {batch_ids[-1]}"


# Asks each source before a start whether the input after the stored offset is still there.
#
# A start whose input is lost, or whose source is another one of the same name, is refused, unless the user named the
# query (``accept_lost_input``).

_WORDS = {
    "removed": "removed at the source before they were read",
    "remade": "of another source of this name, made since the offset was kept",
    "gone": "not there any more",
    "sent_once": "that were sent once, and that no start can read again",
    "elsewhere": "not read by this version, or the offset is of another system",
}
_LISTED = 20
LOOK_AGAIN_SECONDS = 5.0


@dataclass(frozen=True)
class Readable:
    """What a query can start from.

    Attributes:
        lines: its offsets, moved on where lost input was accepted.
        planned_lines: those of a planned batch, likewise.
        remarks: what was lost, as text.
    """

    lines: tuple[str, ...]
    planned_lines: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def look_before_start(
    attempt: Attempt,
    name: str,
    lines: Sequence[str],
    identities: Sequence[SourceIdentity | None],
    newest_batch_id: int,
    *,
    planned_lines: Sequence[str] = (),
    continues: bool = False,
) -> Readable:
    """Check that everything after these offsets can still be read, and record the marks of the sources.

    Args:
        identities: the identity that each offset was stored with; shorter or None where unknown.
        newest_batch_id: the newest batch that is planned or committed; -1 before the first.
        planned_lines: of a batch that is planned and runs first.
        continues: the query continues its own checkpoint, whose offsets are never changed.

    Raises:
        InputLostError: some of it is lost, and the user did not accept that.
    """
    book = attempt.sources
    said = _said_behind(book, name, lines, identities)
    if any(part.reason == "gone" for flight in said.values() for part in flight.lost):
        # A broker that has just started may not know a topic yet. A source that does not answer keeps its first answer.
        attempt.clock.sleep(LOOK_AGAIN_SECONDS)
        said |= _said_behind(book, name, lines, identities)
    found = {number: flight for number, flight in said.items() if flight.lost}
    lost = [part for flight in found.values() for part in flight.lost]
    lost_of = set(found)
    readable, planned = list(lines), list(planned_lines)
    for number, flight in found.items():
        readable[number] = flight.readable
        if planned:
            # Over the same bounds but for what is lost (1a.6).
            of_planned = book.preflight(name, number, planned[number], _marks(identities, number))
            planned[number] = of_planned.readable if of_planned is not None else planned[number]
    is_accepted = name in attempt.spec.start.accept_lost_input and not continues
    book.mark(
        name,
        [identity or SourceIdentity("", "") for identity in identities],
        newest_batch_id,
        lost_of if is_accepted else (),
        [number for number, line in enumerate(lines) if line != NO_OFFSET and number not in said],
    )
    if not lost:
        return Readable(tuple(lines), tuple(planned_lines))
    is_sent_once = all(part.reason == "sent_once" for part in lost)
    if continues and not is_sent_once and all(book.passes_over_lost(name, number) for number in lost_of):
        # The script's own options make each source pass over lost input.
        return Readable(tuple(lines), tuple(planned_lines), _sentences("lost before this start", lost))
    if not is_accepted:
        raise InputLostError(
            "a source of this query sends each row once, so that no start continues from its offset"
            if is_sent_once
            else "input that this query has not read is lost at its source",
            query_name=name,
            rows=sum(part.rows or 0 for part in lost) if any(part.rows is not None for part in lost) else "not known",
            lost=[_one(part) for part in lost[:_LISTED]],
            next_step=f"{_otherwise(is_sent_once)} with --accept-lost-input {name}, which reads what is there.",
        )
    return Readable(tuple(readable), tuple(planned), _sentences("passed over, as was asked for", lost))


def _otherwise(is_sent_once: bool) -> str:
    return "Deploy" if is_sent_once else "Bring it back; or deploy"


def _said_behind(
    book: SourceBook, name: str, lines: Sequence[str], identities: Sequence[SourceIdentity | None]
) -> dict[int, Preflight]:
    """The answers of the sources that can be asked, by number."""
    found = {}
    for number, line in enumerate(lines[: len(book.identities(name))]):
        flight = book.preflight(name, number, line, _marks(identities, number))
        if flight is not None:
            found[number] = flight
    return found


def _marks(identities: Sequence[SourceIdentity | None], number: int) -> Mapping[str, str]:
    identity = identities[number] if number < len(identities) else None
    return identity.marks if identity is not None else {}


def _sentences(what: str, lost: Sequence[LostInput]) -> tuple[str, ...]:
    return tuple(f"{what}: {_one(part)}" for part in lost[:_LISTED])


def _one(part: LostInput) -> str:
    rows = "rows" if part.rows is None else "1 row" if part.rows == 1 else f"{part.rows} rows"
    return f"{part.part}: {rows} {_WORDS[part.reason]}" + (f" ({part.detail})" if part.detail else "")


# Settings that a script makes in its own code: what they overrule of the deployment's, and what comes too late.
#
# As with ``spark-submit``, a script's builder and ``spark.conf.set`` win over the command line, but for what Spark
# reads only when it starts its JVM.

MASTER = "spark.master"
_OF_THE_LAUNCH = {
    "spark.driver.memory": "--conf",
    "spark.driver.memoryOverhead": "--conf",
    "spark.driver.extraClassPath": "--conf",
    "spark.driver.extraLibraryPath": "--conf",
    "spark.jars.packages": "--packages",
    "spark.jars.repositories": "--conf",
    "spark.jars.excludes": "--conf",
    "spark.jars.ivySettings": "--conf",
}
"""What Spark reads only at its launch, and the option of the verbs that gives it."""
# Spark puts options of its own before what is asked for.
_SUPPLEMENTED = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def notes_on_own_settings(
    master: str, conf: Mapping[str, str], in_force: Mapping[str, str], at_launch: Mapping[str, str]
) -> Iterator[str]:
    """Human-readable sentences on the settings that a script made itself.

    Args:
        master: of the deployment; "" for that of a connection.
        conf: of the deployment; references to secrets are not compared.
        in_force: what holds in the script's session.
        at_launch: the same keys, as the JVM was launched with; without those that it was not launched with.
    """
    own = in_force.get(MASTER, "")
    given = master or at_launch.get(MASTER, "")
    if own and given and own != given:
        where = "" if own.startswith("local") else "; give that as --master, so that executors get the script's modules"
        yield f"the script sets its own master {own}, which wins over {given} of the deployment{where}"
    for key in sorted({*conf, *_OF_THE_LAUNCH} & set(in_force)):
        value = in_force[key]
        if key in _OF_THE_LAUNCH:
            if value != at_launch.get(key, ""):
                yield (
                    f"the script sets {key}={_shown(key, value)} when the JVM runs already, where Spark does not read"
                    f" it any more; give it by {_OF_THE_LAUNCH[key]}"
                )
        elif value != conf[key] and key not in _SUPPLEMENTED and not is_reference(conf[key]):
            yield (
                f"the script sets {key}={_shown(key, value)}, which wins over {_shown(key, conf[key])} of the"
                " deployment"
            )


def _shown(key: str, value: str) -> str:
    return HIDDEN if is_secret_name(key) else value


def launch_keys(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The keys whose values at the launch have to be known."""
    return tuple(sorted({MASTER, *conf, *_OF_THE_LAUNCH}))
