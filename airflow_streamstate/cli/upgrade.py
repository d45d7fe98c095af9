"""``plan``, ``upgrade``, ``restart`` and ``rollback``, and how an upgrade is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.naming import allow_change
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    option,
    pass_session,
    stream_argument,
    term_options,
    terms_given,
    values_given,
)
from airflow_streamstate.cli.orders import OVER, WAIT_SECONDS
from airflow_streamstate.cli.render import is_told_by, plain_table, shown, without_launch_folder
from airflow_streamstate.cli.replay import print_versions, watched_by
from airflow_streamstate.cli.session import (
    DONE,
    Answer,
    Printer,
    Report,
    ShellSession,
    status_of_rehearsal,
    status_of_upgrade,
)
from airflow_streamstate.cli.start import change_of, change_options, names_anything
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.policies import RestartPolicy
from airflow_streamstate.protocol.positions import PHASES, Downtime, worst_of
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.scratch import RewrittenTable
from airflow_streamstate.protocol.terms.order import BusyTerms, PlanTerms, RehearsalTerms, RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.request.requests import ChangeRequest
    from airflow_streamstate.controller.scratch.partitions import SuggestedPartitions
    from airflow_streamstate.controller.scratch.rehearsal import RecordedPlans, RehearsalView
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
    from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest, Upgrades
    from airflow_streamstate.plan.model import (
        PlannedSink,
        PlannedSource,
        QueryPlan,
        StateOperator,
        StateVariable,
        Window,
    )
    from airflow_streamstate.plan.report import PlanReport, QueryReport


BAR_CHARACTERS = 30


def waterfall(console: Printer, found: Sequence[Downtime]) -> None:
    """Print the phases of the longest downtime, if one is known."""
    worst = worst_of(found)
    if worst is not None and len(worst.marks) > 1:
        console.print(phases(worst))
        if words := state_words(worst):
            console.print(shown(words))


def state_words(one: Downtime) -> str:
    """The time of opening the state, if known; no phase, as partitions open theirs in parallel, in the first batch."""
    return "" if one.state_load_ms is None else f"opening the state: {one.state_load_ms:,} ms, all partitions together"


def phases(one: Downtime) -> Table:
    """One downtime as a table: when each phase ended, counted from the last commit, and how long it took."""
    table = plain_table(f"{one.query_name}: {one.from_deployment_id} to {one.to_deployment_id}", ">at s", ">took s", "")
    steps = steps_of(one)
    span = max((end for _, _, end, _ in steps), default=0.0)
    for phase, begin, end, clock in steps:
        bar = ""
        if span > 0 and end > 0:
            first, last = (round(BAR_CHARACTERS * max(one, 0.0) / span) for one in (begin, end))
            bar = " " * min(first, BAR_CHARACTERS - 1) + "━" * max(last - first, 1)
        words = f"{PHASES.get(phase, phase)} ({clock}'s clock)"
        table.add_row(shown(words), shown(f"{end:.2f}"), shown(f"{max(end - begin, 0.0):.2f}"), shown(bar))
    return table


def steps_of(one: Downtime) -> list[tuple[str, float, float, str]]:
    """Phase, start, end, clock; in seconds from the last commit.

    In order of time, since a drain's barrier is before the last commit; the clocks of two machines may differ.
    """
    moments = sorted(one.marks, key=lambda mark: mark.at)  # stable: equal times stay in the order of the phases
    found, before = [], None
    for mark in moments:
        at = (mark.at - one.from_at).total_seconds()
        found.append((mark.phase, at if before is None else before, at, mark.clock))
        before = at
    return found


_OUTCOMES = {
    "upgraded": ("green", "upgraded"),
    "given_up": ("yellow", "abandoned; the old version is back"),
    "rolled_back": ("yellow", "rolled back"),
    "refused": ("red", "refused"),
    "failed": ("red", "failed"),
}
_CANCELLED = {
    "given_up": ("yellow", "cancelled; the old version is back"),
    "rolled_back": ("yellow", "cancelled; the old version is back"),
    "refused": ("yellow", "cancelled"),
}


def begun(console: Console, view: UpgradeView) -> None:
    """Printed before the first step."""
    asked = view.state.upgrade
    what = "upgrade of" if asked.asked == "upgrade" else "rollback to the version of"
    console.print(shown(f"{view.stream_id} {view.upgrade_id}: {what} {asked.old_deployment_id}"))


def step(console: Console, line: str) -> None:
    """Printed for each step."""
    console.print(shown(f"  {line}"))


def interrupted(console: Console, view: UpgradeView) -> None:
    """Printed after Ctrl-C."""
    console.print(
        shown(
            f"{view.stream_id} {view.upgrade_id}: interrupted; nothing happens before the stop, after it one version is"
            " started first. Ctrl-C again leaves at once."
        )
    )


def ended(console: Console, view: UpgradeView, cancels: AfterStop | None = None, *, verbose: bool = False) -> None:
    """Printed at the end, a short answer if there is a next step, unless ``verbose``.

    ``cancels`` is the end that the caller has asked for by a cancellation, else None.
    """
    from rich.text import Text

    from airflow_streamstate.controller.upgrade.upgrade_views import differences_of

    go_on = f"is under way; `streamstate continue {view.stream_id}` continues it"
    outcomes = _OUTCOMES | _CANCELLED if view.is_cancelled else _OUTCOMES
    colour, words = outcomes.get(str(view.outcome), ("yellow", go_on))
    if view.outcome == "refused":
        words = f"{words}; {view.after_refusal}"
    answer, state = Answer(), view.state
    answer.print(shown(f"{view.stream_id} {view.upgrade_id}: ") + Text(words, colour))
    if state.text:
        answer.main("reason").print(shown(f"  {without_launch_folder(state.text)}"))
    for warning in state.warnings:
        answer.more("warnings").print(shown("  ") + Text("warning", "yellow") + shown(f": {warning}"))
    for name, value in _upgrade_facts(view):
        if value is not None:
            (answer.main if name == "lineage" else answer.more)(name).print(shown(f"  {name}: {value}"))
    waterfall(answer.more("phases"), view.downtimes)
    for line in _batches(view):
        answer.main("batches").print(shown(f"  {line}"))
    for each in differences_of(state.report):
        words = f"  {each['query']}: {each['code']} ({each['verdict']}): {each['reason']}"
        answer.main("differences").print(shown(words))
    next_step = _next_step(view, cancels)
    answer.show(console, next_step, is_short=bool(next_step) and not verbose)


def _next_step(view: UpgradeView, cancels: AfterStop | None) -> str:
    if cancels is not None and view.is_end_of_cancel(cancels):
        return ""
    if cancels is not None and view.outcome == "upgraded":
        return f"It was over before it could be cancelled; `streamstate rollback {view.stream_id}` goes back."
    error = view.as_error()
    return "" if error is None else error.next_step


def _upgrade_facts(view: UpgradeView) -> Iterator[tuple[str, object]]:
    """A rollback goes from the current version to that of an older deployment."""
    from airflow_streamstate.controller.upgrade.upgrade_views import downtime_words

    state, old_id = view.state, view.state.upgrade.old_deployment_id
    if view.state.upgrade.asked == "rollback":
        yield "from", state.new_deployment_id
        yield "to", f"the version of {old_id}"
        yield "runs in", state.returned_deployment_id
    else:
        yield "from", old_id
        yield "to", state.new_deployment_id
        yield "back in", state.returned_deployment_id
    yield "mode", state.mode
    yield "rollback", state.way
    yield "plan", state.verdict
    yield "downtime", downtime_words(view.downtimes)
    yield "no query ran", None if view.not_running_seconds is None else f"for {view.not_running_seconds:g} s"
    if state.audit_ok is False:
        yield "lineage", "broken: see audit"
    elif state.audit_ok and view.outcome in ("upgraded", "given_up", "rolled_back"):
        yield "lineage", "whole"


def _batches(view: UpgradeView) -> Iterator[str]:
    """The batches that the given-up version committed, and those that it only started."""
    bad, begun_ids = view.state.bad_batches, view.state.begun_batches
    for name in dict.fromkeys((*bad, *begun_ids)):
        parts = []
        if name in bad:
            first, end = bad[name][0], bad[name][-1]
            which, verb = (f"batches {first} to {end}", "are") if first != end else (f"batch {first}", "is")
            parts.append(f"{which} {verb} the abandoned version's{_undone(view)}")
        if name in begun_ids:
            parts.append(f"batch {begun_ids[name]} was started by it{_again(view)}")
        yield f"of query {name}, {'; '.join(parts)}"


def _undone(view: UpgradeView) -> str:
    return ", and gone back behind" if view.state.way == "undo" else ""


def _again(view: UpgradeView) -> str:
    """Which deployment runs a started batch again, over the same bounds; after an undo none does."""
    if view.state.way == "undo":
        return _undone(view)
    is_done = view.is_back
    return f" and {'run again by' if is_done else 'will be run again by'} {view.state.returned_deployment_id}"


def suggestions(console: Console, found: Sequence[SuggestedPartitions]) -> None:
    """Printed by ``rescale --suggest``."""
    if not found:
        console.print("no query of it keeps state, as far as its plans are recorded")
        return
    table = plain_table("query", ">partitions", ">suggested")
    for one in found:
        table.add_row(shown(one.query_name), f"{one.now:,}", f"{one.partitions:,}")
    console.print(table)
    for one in found:
        console.print(shown(f"  {one.query_name}: {one.reason}"))


SETTLE_SECONDS = 300.0
"""How long Ctrl-C waits at most until one version runs; Ctrl-C again leaves at once."""


class UpgradeVerb(OrderVerb):
    """A verb that starts an upgrade or a rollback. This process takes the steps, so it always waits."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(
            *args,
            waits_until=OVER,
            timeout_seconds=WAIT_SECONDS,
            takes=("timeout", "reason", "request-id"),
            **attributes,
        )


@click.command(cls=UpgradeVerb)
@stream_argument
@change_options
@term_options(UpgradeTerms)
@term_options(RestartPolicy, "upgrade", stays=True, heading="Start")
@term_options(BusyTerms)
@pass_session
def upgrade(session: ShellSession, /, stream_id: str, if_busy: str, ordering: Ordering, **given: Any) -> int:
    """Upgrade STREAM: rehearse, stop or drain, start, wait until healthy; back to the old version if that fails.

    Omitted options stay as they are. The new version is rehearsed on a fork of the real state while the old one runs;
    if it cannot work, nothing is stopped (exit status 4). A version that fails or makes no progress is abandoned, and
    the old one continues without a lost or doubled row (exit status 1). A version that is only slower is kept, with a
    warning, unless --roll-back-if-slower applies.

    Every step is recorded: after a crash, `continue` continues it from any machine.
    """
    from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest

    change = change_of(stream_id, given, ordering)
    allow_change(session, change)
    request = UpgradeRequest(change, terms_given(UpgradeTerms, given))
    controller = session.controller()
    restarts = controller.details.checked_restarts(stream_id, values_given(RestartPolicy, given))
    begin = partial(_begin_with_policy, controller, request, restarts)
    return _begin_and_run(session, controller, stream_id, begin, if_busy, ordering)


def _begin_with_policy(
    controller: Controller, request: UpgradeRequest, restarts: Mapping[str, Any], request_id: str | None
) -> UpgradeView:
    """Start an upgrade; then, if it is not refused, change the restart policy."""
    view = controller.upgrades.begin(request, request_id)
    if restarts:
        controller.details.change_restart_policy(request.stream_id, restarts)
    return view


@click.command(cls=UpgradeVerb)
@stream_argument
@term_options(StateRewrite, "rescale", stays=True)
@option("--suggest", is_flag=True, heading="State", help="Change nothing: suggest a number for each query, and why.")
@term_options(UpgradeTerms, "rescale")
@term_options(BusyTerms)
@pass_session
def rescale(session: ShellSession, /, stream_id: str, if_busy: str, ordering: Ordering, **given: Any) -> int:
    """Upgrade STREAM to what it runs now, with its state in another number of partitions.

    The state is rewritten on a fork, compared row by row and rehearsed with real rows while the stream runs; then the
    stream is stopped, and its state rewritten once more, as it is by then. `rollback` brings the old number back.
    """
    from airflow_streamstate.controller.request.requests import change_request
    from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest

    controller = session.controller()
    if given["suggest"] and given["partitions"] is not None:
        raise click.UsageError("--suggest changes nothing: leave it out to rescale, or leave --partitions out.")
    if given["suggest"]:
        found = controller.plans.suggest_partitions(stream_id)
        session.emit(
            {"stream_id": stream_id, "queries": [each.to_json() for each in found]},
            lambda console: suggestions(console, found),
        )
        return DONE
    if given["partitions"] is None:
        raise click.UsageError("--partitions N sets the number of partitions; --suggest suggests a number.")
    change = change_request(stream_id, reason=ordering.reason, **values_given(StateRewrite, given))
    request = UpgradeRequest(change, terms_given(UpgradeTerms, given, mode="restore"))
    begin = partial(controller.upgrades.begin, request)
    return _begin_and_run(session, controller, stream_id, begin, if_busy, ordering)


@click.command(cls=UpgradeVerb)
@stream_argument
@term_options(UpgradeTerms, "restart")
@term_options(BusyTerms)
@pass_session
def restart(session: ShellSession, /, stream_id: str, if_busy: str, ordering: Ordering, **given: Any) -> int:
    """Upgrade STREAM to what it runs now, in a new driver."""
    from airflow_streamstate.controller.request.requests import change_request
    from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest

    controller = session.controller()
    change = change_request(stream_id, reason=ordering.reason)
    request = UpgradeRequest(change, terms_given(UpgradeTerms, given, mode="restore"))
    begin = partial(controller.upgrades.begin, request)
    return _begin_and_run(session, controller, stream_id, begin, if_busy, ordering)


@click.command(cls=UpgradeVerb)
@stream_argument
@term_options(RollbackTerms)
@term_options(BusyTerms)
@pass_session
def rollback(session: ShellSession, /, stream_id: str, if_busy: str, ordering: Ordering, **given: Any) -> int:
    """Run the version before the current deployment of STREAM again, without a lost or doubled row.

    If the current version has committed nothing, the version before continues from the handover. Otherwise its code is
    rehearsed on the state that the current version left, and continues from the last commit; the result names the
    batches that the current version wrote. If neither is possible, the sinks are undone to the handover. If no way is
    exact, the rollback is refused, and nothing is touched.
    """
    from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest

    controller = session.controller()
    request = RollbackRequest(stream_id, terms_given(RollbackTerms, given), ordering.reason)
    begin = partial(controller.upgrades.begin_rollback, request)
    return _begin_and_run(session, controller, stream_id, begin, if_busy, ordering)


def _calling(session: ShellSession, view: UpgradeView, on_progress: Report) -> Report:
    """As ``on_progress``; also reports once that a person has to approve."""
    from airflow_streamstate.controller.upgrade.upgrade_views import WAITS_FOR_A_PERSON

    is_called = False

    def look(text: str) -> None:
        nonlocal is_called
        if text == WAITS_FOR_A_PERSON and not is_called:
            is_called = True
            stream_id = view.stream_id
            how = f"streamstate approve {stream_id}, or streamstate reject {stream_id}"
            session.call(f"{stream_id} {view.upgrade_id}: {WAITS_FOR_A_PERSON}: {how}")
        on_progress(text)

    return look


def _begin_and_run(
    session: ShellSession,
    controller: Controller,
    stream_id: str,
    begin: Callable[[str | None], UpgradeView],
    if_busy: str,
    ordering: Ordering,
) -> int:
    """Start at once or when the stream is free, and run to the end; both within the timeout."""
    timeout_seconds = ordering.timeout_seconds or WAIT_SECONDS
    if if_busy == "refuse":
        return run_to_end(session, controller.upgrades, begin(ordering.request_id), timeout_seconds)
    until_seconds = session.clock.monotonic_seconds() + timeout_seconds
    with session.progress(stream_id) as on_progress:
        view = controller.upgrades.begin_when_free(stream_id, ordering.request_id, begin, timeout_seconds, on_progress)
    left_seconds = max(until_seconds - session.clock.monotonic_seconds(), 0.0)
    return run_to_end(session, controller.upgrades, view, left_seconds)


def run_to_end(
    session: ShellSession,
    upgrades: Upgrades,
    view: UpgradeView,
    timeout_seconds: float,
    cancels: AfterStop | None = None,
) -> int:
    """Take the steps of an upgrade until it has ended, print its end, and return the exit status.

    At the timeout it stays under way. ``cancels`` is the end that a cancellation has asked for, else None.
    """
    session.say(lambda console: begun(console, view))
    try:
        with session.progress(f"{view.stream_id} {view.upgrade_id}") as on_progress:
            view = upgrades.run(
                view.stream_id,
                view.upgrade_id,
                timeout_seconds,
                _calling(session, view, on_progress),
                lambda line: session.say(lambda console: step(console, line)),
                tells_end=False,  # printed below
            )
    except KeyboardInterrupt:
        upgrades.cancel(view.stream_id, view.upgrade_id, after_stop="finish", reason="interrupted")
        session.say(lambda console: interrupted(console, view))
        view = upgrades.settle(view.stream_id, view.upgrade_id, SETTLE_SECONDS)
    session.emit(view.to_json(), lambda console: ended(console, view, cancels, verbose=session.is_verbose))
    return status_of_upgrade(view, cancels)


# ``plan``: compare a change with what runs, before anything is stopped.

_LONGEST_LINE = 160
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))
_COLOURS = {"same": "green", "state-compatible": "green", "needs-drain": "yellow", "hazardous": "red"}
_PLAN_OUTCOMES = {
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

    outcomes = _PLAN_OUTCOMES if found.rehearse else {**_PLAN_OUTCOMES, **_OUTCOMES_OF_PLANS}
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

    from airflow_streamstate.plan.codes import FITTING
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
    """What became of a table of state that was rewritten."""
    rows = "" if table.rows is None else f"{table.rows:,} rows"
    where = f"state {table.table}: {rows} in {_count(table.partitions, 'partition')}".replace("  ", " ")
    if table.is_migrated and table.dropped is not None and table.changed is not None:
        return f"{where}: migrated, {table.changed:,} changed, {table.dropped:,} dropped"
    return f"{where}: {'compared, no row differs' if table.is_equal else 'rewritten'}"


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
    """Check if a change of STREAM fits, before anything is stopped.

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
        from airflow_streamstate.controller.scratch.replays import PlannedReplay

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
    trees = {name: plan_tree_text(known) for name, known in found.queries.items()}
    session.emit(selected(found, "*"), lambda console: recorded(console, found, trees))
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
            lines += [_cut(f"{indent}  · {fact}") for fact in _operator_facts(plan.operators[node.operator_id])]
    return "\n".join(lines)


def _mark(plan: QueryPlan, operator_id: int | None) -> str:
    """The number of an operator with state, and its name for migrations."""
    from airflow_streamstate.plan.record import operator_name

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


def _operator_facts(operator: StateOperator) -> Iterator[str]:
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
