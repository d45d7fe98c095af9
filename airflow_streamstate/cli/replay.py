"""``replay``: run recorded batches again, into files, with debuggers."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.naming import allow_change, allow_here
from airflow_streamstate.cli.options import (
    Verb,
    deadline_option,
    is_given,
    option,
    pass_session,
    stream_argument,
    term_options,
)
from airflow_streamstate.cli.render import is_told_by, plain_table, shown, without_launch_folder
from airflow_streamstate.cli.session import Answer, ShellSession, status_of_replay
from airflow_streamstate.cli.start import code_options, version_given
from airflow_streamstate.protocol.scratch import REPLAY_SECONDS, ReplayedBatch
from airflow_streamstate.protocol.terms.order import LOCAL_MASTER, MOST_BATCHES, DeploymentChoice
from airflow_streamstate.protocol.terms.version import Version

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_streamstate.controller.scratch.replays import ReplayRequest, ReplayView, Watched
    from airflow_streamstate.controller.scratch.run import Report
    from airflow_streamstate.plan.replay_report import ReplayedVersions, ReplayReport


# Lends the terminal to debuggers of a replay's processes, which connect over a Unix socket, one after the other.

_BYTES = 65_536
_POLL_SECONDS = 0.2
_TERMINAL = "/dev/tty"
_AT_ONCE = 64  # more tasks than a machine has cores


class TerminalDebugger:
    """A socket in a folder of this user alone, there for as long as the context is open.

    Raises:
        click.UsageError: there is no terminal.
    """

    def __init__(self) -> None:
        try:
            self._terminal = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY) if sys.stdin.isatty() else -1
        except OSError:
            self._terminal = -1
        if self._terminal < 0:
            raise click.UsageError("--pdb opens a debugger on the terminal, and this is none: leave it out.")
        self._is_over = threading.Event()

    def __enter__(self) -> str:
        """The path of the socket.

        Raises:
            click.UsageError: none can be made among the temporary files.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder = ""
        try:
            self._folder = tempfile.mkdtemp(prefix="streamstate-pdb-")
            path = str(Path(self._folder) / "pdb")
            self._listener.bind(path)
            self._listener.listen(_AT_ONCE)
        except OSError as error:
            self._clean_up()
            raise click.UsageError(
                f"--pdb needs a Unix socket among the temporary files, and none can be made in {tempfile.gettempdir()} "
                f"({error}): name a folder with a short path in TMPDIR."
            ) from None
        self._thread = threading.Thread(target=self._serve, name="streamstate-pdb", daemon=True)
        self._thread.start()
        return path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._clean_up()

    def _clean_up(self) -> None:
        self._listener.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._terminal)

    def _serve(self) -> None:
        while not self._is_over.is_set():
            if select.select([self._listener], [], [], _POLL_SECONDS)[0]:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):  # its process has ended
                    self._relay(connection)

    def _relay(self, connection: socket.socket) -> None:
        """Until the other side closes."""
        while not self._is_over.is_set():
            ready = select.select([connection.fileno(), self._terminal], [], [], _POLL_SECONDS)[0]
            if connection.fileno() in ready:
                said = connection.recv(_BYTES)
                if not said:
                    return
                os.write(self._terminal, said)
            elif self._terminal in ready:
                typed = os.read(self._terminal, _BYTES)
                if typed:
                    connection.sendall(typed)
                else:
                    connection.shutdown(socket.SHUT_WR)  # Ctrl-D, by which pdb quits


DEBUGGED_SECONDS = 86_400.0
_COLOURS = {"done": "green", "refused": "red", "failed": "red", "deadline": "red"}
_OUTCOMES = {"done": "done", "refused": "refused", "failed": "failed", "deadline": "not over in time"}
_NEXT_STEPS = {
    "done": "",
    "refused": "Change what the error names, and replay again.",
    "failed": "Fix the script, and try it with `streamstate replay --app FILE`.",
    "deadline": "Give it more time with --deadline.",
}


def replaying(console: Console, view: ReplayView) -> None:
    """Before the wait: what runs again, and where its rows go."""
    for name, batch_ids in view.batches.items():
        which = f"batch {batch_ids[0]}" if len(batch_ids) == 1 else f"batches {batch_ids[0]} to {batch_ids[-1]}"
        console.print(shown(f"{view.stream_id} {view.replay_id}: {which} of {view.deployment_id} {name}"))
    console.print(shown(f"  into {view.out}"))


def watched_by(session: ShellSession, *, shows_progress: bool = True) -> Watched:
    """Waits for replays, with their progress on stderr if ``shows_progress``."""

    @contextmanager
    def watched(view: ReplayView) -> Iterator[Report]:
        session.say(lambda console: replaying(console, view))
        if not shows_progress:
            yield lambda _text: None
            return
        with session.progress(f"{view.stream_id} {view.replay_id}") as on_progress:
            yield on_progress

    return watched


def print_versions(answer: Answer, found: ReplayedVersions) -> None:
    """Each batch in both versions, with its numbers, the first rows that differ, and the errors."""
    from airflow_streamstate.plan.replay_report import VERSIONS_COLUMNS, samples_of, versions_rows

    rows = versions_rows(found)
    if not rows:
        return
    table = plain_table("query", ">batch", *(f">{title}" for title, _ in VERSIONS_COLUMNS))
    for row in rows:
        table.add_row(*map(shown, row))
    answer.more("batches").print(table)
    for name, old, new in found.pairs:
        for title, text in samples_of(name, new).items():
            _block(answer, title, text)
        for which, batch in (("recorded", old), ("new", new)):
            if batch is not None:
                _failed(answer, f"batch {batch.batch_id} of {name} in the {which} version", batch)
    _state(answer, found.new)


def print_replay(console: Console, found: ReplayReport, *, verbose: bool = False) -> None:
    """The report of a replay; a short answer about one that is not done, unless ``verbose``."""
    answer = Answer()
    _outcome(answer, found, "")
    table = plain_table("query", ">batch", ">rows in", ">rows out", ">seconds", "files")
    ran = [(name, batch) for name, query in found.queries.items() for batch in query.batches]
    for name, batch in ran:
        cells = ("-" if count is None else f"{count:,}" for count in (batch.rows_in, batch.rows_out))
        files = batch.folder or "none: the batch failed"
        table.add_row(shown(name), str(batch.batch_id), *cells, f"{batch.seconds:.1f}", shown(files))
    if ran:
        answer.more("batches").print(table)
    _told(answer, found)
    for name, batch in ran:
        _failed(answer, f"batch {batch.batch_id} of {name}", batch)
    next_step = _NEXT_STEPS[found.outcome]
    answer.show(console, next_step, is_short=bool(next_step) and not verbose)


def print_both(console: Console, found: ReplayedVersions, *, verbose: bool = False) -> None:
    """The report of a replay of two versions, that of a version which is not done first."""
    answer = Answer()
    sides = [("recorded", found.old), ("new", found.new)]
    sides.sort(key=lambda side: side[1].outcome == "done")
    for which, side in sides:
        _outcome(answer.main("outcomes"), side, f"of the {which} script ")
    print_versions(answer, found)
    for which, side in sides:
        _told(answer, side, f"{which}, ")
        answer.more("folders").print(shown(f"  rows of the {which} version: {side.out}"), soft_wrap=True)
    if found.speed is not None:
        answer.more("speed").print(shown(f"  speed: {found.speed}"), soft_wrap=True)
    next_step = _NEXT_STEPS[sides[0][1].outcome]
    answer.show(console, next_step, is_short=bool(next_step) and not verbose)


def _outcome(answer: Answer, found: ReplayReport, which: str) -> None:
    line = shown(f"{found.stream_id} {found.deployment_id}: the replay {which}is ")
    answer.print(line + shown(_OUTCOMES[found.outcome], _COLOURS[found.outcome]))


def _told(answer: Answer, found: ReplayReport, which: str = "") -> None:
    """Errors and notes of one version, and how its script or its driver ended."""
    if found.error:
        answer.main("error").print(shown(f"  {which}{found.error}"))
    for name, query in found.queries.items():
        if query.error and query.error != found.error:
            answer.main("errors").print(shown(f"  {which}{name}: {query.error}", _COLOURS[query.outcome]))
        for note in query.notes:
            answer.more("notes").print(shown(f"  {which}{name}: {note}"))
    for note in found.notes:
        answer.more("notes").print(shown(f"  {which}{note}"))
    _block(answer, f"{which}traceback", found.traceback)
    _block(answer, f"{which}end of the log", "" if is_told_by(found.traceback, found.log_tail) else found.log_tail)


def _state(answer: Answer, found: ReplayReport) -> None:
    """What the state after the last batch is in the new version, compared with that in the recorded one."""
    from airflow_streamstate.plan.replay_report import STATE_TITLES, state_rows, state_samples

    rows = state_rows(found)
    if not rows:
        return
    table = plain_table(*STATE_TITLES[:2], *(f">{title}" for title in STATE_TITLES[2:]))
    for row in rows:
        table.add_row(*map(shown, row))
    answer.more("state").print(table)
    for title, text in state_samples(found).items():
        _block(answer, title, text)


def _failed(answer: Answer, title: str, batch: ReplayedBatch) -> None:
    _block(answer, title, batch.traceback)
    _block(answer, f"{title}, values where it failed", batch.failed_at)


def _block(answer: Answer, title: str, text: str) -> None:
    answer.block(title, without_launch_folder(text))


@click.command(cls=Verb)
@stream_argument
@option("--batch", "batch_id", type=click.IntRange(min=0), metavar="N", help="This batch of each query.")
@option(
    "--last",
    type=click.IntRange(1, MOST_BATCHES),
    default=1,
    show_default=True,
    metavar="K",
    help="The newest K batches of each query, up to the one that is planned and not committed, or else to the newest "
    "one that read rows.",
)
@option("--query", "query_name", metavar="NAME", help="Only this query.")
@term_options(DeploymentChoice)
@option(
    "--fail-on-changed-rows",
    is_flag=True,
    help="With --app: exit status 1 unless each batch has the same rows in both versions.",
)
@option(
    "--call-foreach-batch",
    "calls_foreach_batch",
    is_flag=True,
    help="Call the script's own foreachBatch with the rows of each batch; with --app that of the new script alone.",
)
@option(
    "--pdb",
    "debugs",
    is_flag=True,
    help="Open a debugger on this terminal where the script's Python code fails, or calls breakpoint(); with --app in "
    "the new script alone.",
)
@option(
    "--out",
    metavar="FOLDER",
    help="An empty or new folder of this machine for the rows. By default replay-STREAM-BATCH in the current one.",
)
@option(
    "--master",
    metavar="URL",
    default=LOCAL_MASTER,
    show_default=True,
    help="Spark's master for this driver; where it is no local one, its executors must see the folder.",
)
@term_options(Version, "replay", stays=True)
@code_options
@deadline_option(REPLAY_SECONDS, "Seconds until the replay is ended; a day with --pdb, which takes none.")
@pass_session
def replay(
    session: ShellSession,
    /,
    stream_id: str,
    batch_id: int | None,
    last: int,
    query_name: str | None,
    deployment_id: str | None,
    out: str | None,
    deadline_seconds: float,
    fail_on_changed_rows: bool,
    calls_foreach_batch: bool,
    debugs: bool,
    **given: Any,
) -> int:
    """Run recorded batches of STREAM again, on a fork of the state of before them, into Parquet files.

    The batch that failed, on this machine: by default the newest one. Each batch has the bounds and the watermark that
    the log has of it. The script runs once in its own driver, with STREAMSTATE_REHEARSAL=1 and STREAMSTATE_REPLAY=1 in
    its environment; its sinks are not written, and a foreachBatch is called only by --call-foreach-batch. The stream
    may keep running.

    With --app the recorded script runs first, into FOLDER/old, then the new one over the same batches, into FOLDER/new,
    with the same --conf, --env, --packages, --jars, --master and --working-folder.

    Exit status 0 if each batch has run, 1 if the script failed, with its error, 3 if it was not over in time, 4 if the
    rows of a batch are gone or the script does not fit.
    """
    from airflow_streamstate.controller.request.requests import change_request
    from airflow_streamstate.controller.scratch.replays import ReplayRequest

    if batch_id is not None and is_given("last"):
        raise click.UsageError("--batch names one batch, and --last the newest ones: leave out one of them.")
    named = version_given(given)
    if fail_on_changed_rows and "application" not in named:
        raise click.UsageError("--fail-on-changed-rows compares a new script with the recorded one: give --app.")
    change = change_request(stream_id, **named)
    allow_change(session, change)
    allow_here(session)
    request = ReplayRequest(
        change=change,
        batch_id=batch_id,
        last=last,
        deployment_id=deployment_id,
        query_name=query_name,
        out=out,
        deadline_seconds=deadline_seconds,
        calls_foreach_batch=calls_foreach_batch,
    )
    if not debugs:
        return _begin_and_run(session, request, watched_by(session), fails_on_changed_rows=fail_on_changed_rows)
    master = change.patch.values["master"]
    if not master.startswith("local"):
        raise click.UsageError(f"--pdb reaches processes of this machine, and --master is {master}: leave it out.")
    if is_given("deadline_seconds"):
        raise click.UsageError("--deadline would end the replay while it is debugged: leave out --deadline, or --pdb.")
    request = replace(request, deadline_seconds=DEBUGGED_SECONDS)
    with TerminalDebugger() as socket_path:
        watched = watched_by(session, shows_progress=False)
        request = replace(request, debugger=socket_path)
        return _begin_and_run(session, request, watched, fails_on_changed_rows=fail_on_changed_rows)


def _begin_and_run(
    session: ShellSession, request: ReplayRequest, watched: Watched, *, fails_on_changed_rows: bool
) -> int:
    """Run the replay, print its report, and return the exit status."""
    change, replays = request.change, session.controller().replays
    if change.patch.script is None:
        _, report = replays.run(request, watched)
        session.emit(report.to_json(), lambda console: print_replay(console, report, verbose=session.is_verbose))
        return status_of_replay(report.outcome)
    from airflow_streamstate.controller.scratch.replays import ReplayPair

    for_both = replace(change, patch=change.patch.but(application=None, arguments=None, py_files=None, files=None))
    both = replays.run_both(ReplayPair(request, for_both), watched)
    session.emit(both.to_json(), lambda console: print_both(console, both, verbose=session.is_verbose))
    return status_of_replay(both.new.outcome, is_as_asked=both.new.has_same_rows or not fails_on_changed_rows)
