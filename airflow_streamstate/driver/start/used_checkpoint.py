"""Refuses to start a query with nothing whose own checkpoint holds committed batches: it ran without streamstate.

Its first batch would read again what is written already. Only a query that the stream has never run is looked at: the
script keeps its ``checkpointLocation`` for ever, and nothing runs there any more once the stream has gone on.
"""

from __future__ import annotations

import shlex

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import OwnCheckpoint, StartableQuery
from airflow_streamstate.errors import StartRefusedError
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.command_line import CommandLine, command_line
from airflow_streamstate.protocol.terms.start import HandoverTerms
from airflow_streamstate.protocol.terms.version import Version

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
            f"To begin with nothing, give query {name} a checkpointLocation that no query has used. To go on where it"
            " stands, leave it out of this script, and adopt it as a stream: `streamstate adopt NEW_STREAM --checkpoint"
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
        said = f"To go on where it stands: `{words}`. Leave out --stopped while the old job still runs."
    else:
        said = (
            "No store of streamstate reads its checkpoint there: once the old job has ended, copy the folder to a disk"
            f" or a bucket. To go on from the copy: `{words}`."
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
            f"To begin at the beginning instead, give query {name} a new output, which its sink needs, and deploy with"
            " --start fresh."
        )
    return "To begin at the beginning instead, deploy with --start fresh: all rows are written again."


def adopt_command(spec: DeploymentSpec, home_uri: str, name: str, uri: str) -> str:
    """The `streamstate adopt` that goes on with this query by the code and settings of this deployment.

    With ``--stopped``: where that is wrong, the log moves, and the adoption is refused.
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
