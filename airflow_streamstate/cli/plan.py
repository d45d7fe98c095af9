"""``plan``: compare a change with what runs, before anything is stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.answer import Answer
from airflow_streamstate.cli.changes import change_of, change_options, names_anything
from airflow_streamstate.cli.exits import DONE, status_of_rehearsal
from airflow_streamstate.cli.naming import allow_change
from airflow_streamstate.cli.options import Ordering, OrderVerb, option, pass_session, stream_argument
from airflow_streamstate.cli.render import is_told_by, plain_table, shown, without_launch_folder
from airflow_streamstate.cli.replay import print_versions, watched_by
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options, terms_given
from airflow_streamstate.protocol.scratch import RewrittenTable
from airflow_streamstate.protocol.terms.order import PlanTerms
from airflow_streamstate.protocol.terms.upgrade import RehearsalTerms

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.request.requests import ChangeRequest
    from airflow_streamstate.controller.scratch.plan_comparison import RecordedPlans
    from airflow_streamstate.controller.scratch.rehearsal import RehearsalView
    from airflow_streamstate.plan.model import (
        PlannedSink,
        PlannedSource,
        QueryPlan,
        StateOperator,
        StateVariable,
        Window,
    )
    from airflow_streamstate.plan.report import PlanReport, QueryReport

_LONGEST_LINE = 160
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))
_COLOURS = {"same": "green", "state-compatible": "green", "needs-drain": "yellow", "hazardous": "red"}
_OUTCOMES = {
    "fits": ("green", "fits"),
    "refused": ("red", "does not fit"),
    "failed": ("red", "failed in its rehearsal"),
    "deadline": ("red", "was not rehearsed in time"),
}
_TRIED = {"accepted": "accepted", "refused": "refused", "failed": "failed in Spark", "not_run": "not run"}
_OUTCOMES_OF_PLANS = {
    "failed": ("red", "failed before its plans were known"),
    "deadline": ("red", "was not planned in time"),
}


def rehearsing(console: Console, view: RehearsalView, *, rehearse: bool) -> None:
    """Before the wait: what is tried, and on which state."""
    if not rehearse:
        what = f"the plans of the change are compared with those of {view.deployment_id}, no batch is tried"
        _begun(console, view, what)
        return
    start = view.start
    what = {"restore": "on a fork of the state", "seed": "at the offsets"}.get(start.mode, "with nothing")
    at = f" of {view.deployment_id} as it is now" if start.snapshot_id == view.rehearsal_id else ""
    from_snapshot = f" of snapshot {start.snapshot_id}" if start.snapshot_id and not at else ""
    _begun(console, view, f"the change is rehearsed {what}{at}{from_snapshot}")


def _begun(console: Console, view: RehearsalView, what: str) -> None:
    console.print(shown(f"{view.stream_id} {view.rehearsal_id}: {what}"))
    for note in view.notes:
        console.print(shown(f"  {note}"))


def print_report(console: Console, found: PlanReport, *, verbose: bool = False) -> None:
    """The report of a change; a short answer about one that does not fit, unless ``verbose``."""
    from rich.text import Text

    from airflow_streamstate.plan.report import replay_sentences

    outcomes = _OUTCOMES if found.rehearse else {**_OUTCOMES, **_OUTCOMES_OF_PLANS}
    colour, words = outcomes[found.outcome]
    line = shown(f"{found.stream_id}, compared with {found.deployment_id}: the change ") + Text(words, colour)
    if found.verdict is not None:
        line += shown(": ") + Text(found.verdict, _COLOURS[found.verdict])
    answer = Answer()
    answer.print(line)
    if found.reason:
        answer.main("reason").print(shown(f"  {found.reason}"))
    if found.queries:
        answer.more("queries").print(_queries(found.queries))
    for name, query in found.queries.items():
        _differences(answer, name, query)
    for note in found.notes:
        answer.more("notes").print(shown(f"  {note}"))
    if found.replay is not None:
        print_versions(answer, found.replay)
    for text in replay_sentences(found):
        answer.more("replay").print(shown(f"  {text}", "yellow"))
    log_tail = "" if is_told_by(found.traceback, found.log_tail) else found.log_tail
    for title, text in (("traceback", found.traceback), ("end of the log", log_tail)):
        answer.block(title, without_launch_folder(text))
    error = found.as_error()
    answer.show(console, "" if error is None else error.next_step, is_short=error is not None and not verbose)


def recorded(console: Console, found: RecordedPlans, trees: Mapping[str, str]) -> None:
    """The recorded plans, each as a tree."""
    console.print(shown(f"{found.stream_id} {found.deployment_id}"))
    for name in found.queries:
        console.print(shown(f"query {name}", "bold"))
        console.print(shown("\n".join(f"  {row}" for row in trees[name].splitlines())), soft_wrap=True)
    for name in found.unknown:
        console.print(shown(f"query {name}: no plan is recorded"))
    for note in found.notes:
        console.print(shown(note, "yellow"))
    if not found.queries and not found.unknown:
        console.print("  no query was started yet")


def _queries(queries: Mapping[str, QueryReport]) -> Table:
    table = plain_table("query", "plan", "rehearsal", "start", ">seconds", "error")
    for name, query in queries.items():
        verdict, tried = query.verdict or "not compared", query.rehearsed
        cells = ("not started", "", "", "") if tried is None else (
            _TRIED[tried.outcome], tried.start, f"{tried.seconds:.1f}", tried.error,
        )  # fmt: skip
        table.add_row(shown(name), shown(verdict, _COLOURS.get(verdict, "")), *map(shown, cells))
    return table


def _differences(answer: Answer, name: str, query: QueryReport) -> None:
    from rich.text import Text

    from airflow_streamstate.plan.differences import FITTING
    from airflow_streamstate.plan.report import ran_again

    for each in query.differences:
        where = f" ({each.path})" if each.path else ""
        part = (answer.more if each.verdict in FITTING else answer.main)("differences")
        part.print(shown(f"  {name}: ") + Text(each.code, _COLOURS[each.verdict]) + shown(f"{where}: {each.reason}"))
        answer.more("remedies").print(shown(f"      -> {each.remedy}"))
    for advice in query.advice:
        answer.more("advice").print(shown(f"  {name}: {advice.code}: {advice.text}"))
    if query.rehearsed is None:
        return
    for line in map(rewritten_words, query.rehearsed.rewritten):
        answer.more("state").print(shown(f"  {name}: {line}"))
    for line in [sample for table in query.rehearsed.rewritten for sample in table.samples]:
        answer.more("state").print(shown(f"      {_cut(line)}"))
    for note in (*ran_again(query.rehearsed), *query.rehearsed.notes):
        answer.more("notes").print(shown(f"  {name}: {note}"))


def rewritten_words(table: RewrittenTable) -> str:
    """What became of a table of state that was written anew."""
    rows = "" if table.rows is None else f"{table.rows:,} rows"
    where = f"state {table.table}: {rows} in {_count(table.partitions, 'partition')}".replace("  ", " ")
    if table.is_migrated and table.dropped is not None and table.changed is not None:
        return f"{where}: migrated, {table.changed:,} changed, {table.dropped:,} dropped"
    return f"{where}: {'compared, no row differs' if table.is_equal else 'written anew'}"


@click.command(cls=OrderVerb, takes=("reason", "request-id"))
@stream_argument
@term_options(RehearsalTerms)
@change_options
@term_options(PlanTerms)
@option(
    "--replay-out",
    metavar="FOLDER",
    heading="Replay",
    help="An empty or new folder of this machine in which the rows stay. By default they are removed.",
)
@option("--markdown", "as_markdown", is_flag=True, help="Print the report as Markdown, for a pull request.")
@pass_session
def plan(
    session: ShellSession,
    /,
    stream_id: str,
    replay_out: str | None,
    as_markdown: bool,
    ordering: Ordering,
    **change: Any,
) -> int:
    """Say whether a change of STREAM fits, before anything is stopped.

    Omitted options stay as in the current deployment. The new script runs once in its own driver: each query is
    compared with the running one, and tried on a fork of its state: with an empty batch, and with the rows of the last
    batch. The stream, its checkpoints,
    its positions and its sinks are not touched, and the rehearsal's files are removed.

    With --replay the newest recorded batches then run in both versions, on forks of the state of before them, and
    their rows are compared; a batch that fails in the new version refuses the change.

    Exit status 0 if the change is `same` or `state-compatible` and its rehearsal succeeded, 4 if it does not fit, 1 if
    the script failed, 3 if it was not over in time.

    Without a change: the recorded plan of what runs, as a tree.
    """
    from airflow_streamstate.plan.report import to_markdown

    is_change = names_anything(change)
    terms = terms_given(PlanTerms, change)
    if not terms.replay_batches and replay_out is not None:
        raise click.UsageError("--replay-out is about replayed batches: give --replay K, too.")
    if terms.replay_batches and not is_change:
        raise click.UsageError(
            "--replay compares a change with what runs: give --app, or another change; `streamstate replay` runs the"
            " recorded version alone."
        )
    if not is_change:
        return _show(session, session.controller(), stream_id)
    request = change_of(stream_id, change, ordering)
    allow_change(session, request)
    controller = session.controller()
    if replay_out is not None:
        controller.replays.check_folder(stream_id, replay_out)
    report = _rehearsed(
        session,
        controller,
        request,
        request_id=ordering.request_id,
        terms=terms_given(RehearsalTerms, change),
        deadline_seconds=terms.deadline_seconds,
    )
    if batches := terms.replay_batches:
        from airflow_streamstate.controller.scratch.replay import PlannedReplay

        planned = PlannedReplay(report, request, batches, terms.deadline_seconds)
        report = controller.replays.add_to(planned, watched_by(session), out=replay_out)
    if as_markdown and not session.as_json:
        click.echo(to_markdown(report), nl=False)
    else:
        session.emit(report.to_json(), lambda console: print_report(console, report, verbose=session.is_verbose))
    return status_of_rehearsal(report.outcome, is_as_asked=report.has_same_rows or not terms.fail_on_changed_rows)


def _rehearsed(
    session: ShellSession, controller: Controller, request: ChangeRequest, terms: RehearsalTerms, **given: Any
) -> PlanReport:
    view = controller.plans.begin(request, terms=terms, **given)
    session.say(lambda console: rehearsing(console, view, rehearse=terms.rehearse))
    with session.progress(f"{view.stream_id} {view.rehearsal_id}") as on_progress:
        return controller.plans.wait(view, on_progress)


def _show(session: ShellSession, controller: Controller, stream_id: str) -> int:
    found = controller.plans.recorded(stream_id)
    result = {
        "stream_id": found.stream_id,
        "deployment_id": found.deployment_id,
        "queries": {name: asdict(known) for name, known in found.queries.items()},
        "unknown": list(found.unknown),
        "notes": list(found.notes),
    }
    trees = {name: plan_tree_text(known) for name, known in found.queries.items()}
    session.emit(result, lambda console: recorded(console, found, trees))
    return DONE


def plan_tree_text(plan: QueryPlan) -> str:
    """The sink first, then each node below what it feeds; stateful operators and sources with their numbers."""
    state = plan.state
    lines = [
        f"{plan.query_name}: {plan.output_mode}, {plan.trigger}, Spark {plan.spark_version}",
        f"to {_sink(plan.sink)}",
    ]
    if plan.operators:
        lines.append(
            f"state: {_count(state.partitions, 'partition')}, {state.provider.rpartition('.')[2]}, checkpoint format"
            f" {state.checkpoint_format}{', changelogs' if state.changelog else ''}"
        )
    for node in plan.nodes:
        indent = "  " * node.depth
        mark = _mark(plan, node.operator_id)
        if node.source is not None and node.source < len(plan.sources):
            lines.append(f"{indent}source {node.source}: {_source(plan.sources[node.source])}")
            continue
        lines.append(_cut(f"{indent}{node.kind} {node.text}".rstrip()) + mark)
        if node.operator_id is not None and node.operator_id < len(plan.operators):
            lines += [_cut(f"{indent}  · {fact}") for fact in _facts(plan.operators[node.operator_id])]
    return "\n".join(lines)


def _mark(plan: QueryPlan, operator_id: int | None) -> str:
    """The number of an operator with state, and its name for migrations."""
    from airflow_streamstate.plan.migrating import operator_name

    if operator_id is None:
        return ""
    named = "" if operator_id >= len(plan.operators) else f": {operator_name(plan.operators[operator_id])}"
    return f"  [state {operator_id}{named}]"


def duration_text(milliseconds: int) -> str:
    """``5 minutes`` for 300000: in the largest unit of which it is a whole number."""
    for unit, length_ms in _UNITS:
        if milliseconds and milliseconds % length_ms == 0:
            return _count(milliseconds // length_ms, unit)
    return f"{milliseconds} ms"


def window_words(window: Window) -> str:
    if window.kind == "session":
        gap = window.gap if window.duration_ms is None else duration_text(window.duration_ms)
        return f"session over {window.column}, gap {gap}"
    words = [f"{window.kind} over {window.column}"]
    if window.duration_ms is not None:
        words.append(duration_text(window.duration_ms))
    if window.kind == "sliding" and window.slide_ms is not None:
        words.append(f"every {duration_text(window.slide_ms)}")
    if window.offset_ms:
        words.append(f"shifted by {duration_text(window.offset_ms)}")
    return ", ".join(words)


def _facts(operator: StateOperator) -> Iterator[str]:
    if operator.keys:
        yield f"keys: {', '.join(f'{key.text} {key.type}'.strip() for key in operator.keys)}"
    for window in operator.windows:
        yield f"window: {window_words(window)}"
    for name in ("function", "output_mode", "time_mode", "timeout", "state_schema"):
        if getattr(operator, name):
            yield f"{name.replace('_', ' ')}: {getattr(operator, name)}"
    if operator.variables is not None:
        yield f"variables: {', '.join(_variable(each) for each in operator.variables)}"


def _variable(variable: StateVariable) -> str:
    return f"{variable.name} ({variable.kind}{', time to live' if variable.has_ttl else ''})"


def _source(source: PlannedSource) -> str:
    named = f" named {source.name}" if source.name else ""
    options = ", ".join(f"{name}={value}" for name, value in sorted(source.options.items()))
    columns = ", ".join(f"{column.name} {column.type}" for column in source.columns)
    return _cut(f"{source.format} {source.identity}{named} ({columns}){f' {options}' if options else ''}")


def _sink(sink: PlannedSink) -> str:
    parts = [sink.described]
    if sink.partitioned_by:
        parts.append(f"partitioned by {', '.join(sink.partitioned_by)}")
    if sink.skips in ("batch_id", "query_id_and_batch_id"):
        parts.append(f"(skips what it holds, by {sink.skips.replace('_', ' ')})")
    return " ".join(part for part in parts if part)


def _count(number: int, of: str) -> str:
    return f"{number} {of}" if number == 1 else f"{number} {of}s"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"
