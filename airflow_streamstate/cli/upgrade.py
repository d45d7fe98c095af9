"""``upgrade``, ``restart`` and ``rollback``, and how an upgrade is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.answer import Answer, Printer
from airflow_streamstate.cli.changes import change_of, change_options
from airflow_streamstate.cli.exits import DONE, status_of_upgrade
from airflow_streamstate.cli.naming import allow_change
from airflow_streamstate.cli.options import Ordering, OrderVerb, option, pass_session, stream_argument
from airflow_streamstate.cli.render import plain_table, shown, without_launch_folder
from airflow_streamstate.cli.session import Report, ShellSession
from airflow_streamstate.cli.term_options import term_options, terms_given, values_given
from airflow_streamstate.protocol.downtimes import PHASES, Downtime, worst_of
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.terms.order import BusyTerms
from airflow_streamstate.protocol.terms.upgrade import RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.scratch.partitions import SuggestedPartitions
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
    from airflow_streamstate.controller.upgrade.upgrades import Upgrades
    from airflow_streamstate.controller.upgrade.views import UpgradeView

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
    """Phase, begin, end, clock; in seconds from the last commit.

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
    "given_up": ("yellow", "given up; the old version is back"),
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
    """Printed at the end, a short answer where there is a next step, unless ``verbose``.

    ``cancels`` is the end that the caller has asked for by a cancellation, else None.
    """
    from rich.text import Text

    from airflow_streamstate.controller.upgrade.views import differences_of

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
    for name, value in _facts(view):
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


def _facts(view: UpgradeView) -> Iterator[tuple[str, object]]:
    """A rollback goes from the current version to that of an older deployment."""
    from airflow_streamstate.controller.upgrade.views import downtime_words

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
    yield "way back", state.way
    yield "plan", state.verdict
    yield "downtime", downtime_words(view.downtimes)
    yield "no query ran", None if view.not_running_seconds is None else f"for {view.not_running_seconds:g} s"
    if state.audit_ok is False:
        yield "lineage", "broken: see audit"
    elif state.audit_ok and view.outcome in ("upgraded", "given_up", "rolled_back"):
        yield "lineage", "whole"


def _batches(view: UpgradeView) -> Iterator[str]:
    """The batches that the given-up version committed, and those that it only began."""
    bad, begun_ids = view.state.bad_batches, view.state.begun_batches
    for name in dict.fromkeys((*bad, *begun_ids)):
        parts = []
        if name in bad:
            first, end = bad[name][0], bad[name][-1]
            which, verb = (f"batches {first} to {end}", "are") if first != end else (f"batch {first}", "is")
            parts.append(f"{which} {verb} the given-up version's{_undone(view)}")
        if name in begun_ids:
            parts.append(f"batch {begun_ids[name]} was begun by it{_again(view)}")
        yield f"of query {name}, {'; '.join(parts)}"


def _undone(view: UpgradeView) -> str:
    return ", and gone back behind" if view.state.way == "undo" else ""


def _again(view: UpgradeView) -> str:
    """Which deployment runs a begun batch again, over the same bounds; after an undo none does."""
    if view.state.way == "undo":
        return _undone(view)
    is_done = view.is_back
    return f" and {'run again by' if is_done else 'is to be run again by'} {view.state.returned_deployment_id}"


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


WAIT_SECONDS = 3_600.0
SETTLE_SECONDS = 300.0
"""How long Ctrl-C waits at most until one version runs; Ctrl-C again leaves at once."""
OVER = "it is over; at the timeout it stays under way, and `continue` continues it"


class UpgradeVerb(OrderVerb):
    """A verb that begins an upgrade or a rollback. This process takes the steps, so it always waits."""

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
    if it cannot work, nothing is stopped (exit status 4). A version that fails or makes no progress is given up, and
    the old one continues without a lost or doubled row (exit status 1). A version that is only slower is kept, with a
    warning, unless --roll-back-if-slower says otherwise.

    Every step is recorded: after a crash, `continue` continues it from any machine.
    """
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

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
    """Begin an upgrade; then, where it is not refused, change the restart policy."""
    view = controller.upgrades.begin(request, request_id)
    if restarts:
        controller.details.change_restart_policy(request.stream_id, restarts)
    return view


@click.command(cls=UpgradeVerb)
@stream_argument
@term_options(StateRewrite, "rescale", stays=True)
@option("--suggest", is_flag=True, heading="State", help="Change nothing: say a number for each query, and why.")
@term_options(UpgradeTerms, "rescale")
@term_options(BusyTerms)
@pass_session
def rescale(session: ShellSession, /, stream_id: str, if_busy: str, ordering: Ordering, **given: Any) -> int:
    """Upgrade STREAM to what it runs now, with its state in another number of partitions.

    The state is written anew on a fork, compared row by row and rehearsed with real rows while the stream runs; then
    the stream is stopped, and its state written anew once more, as it is by then. `rollback` brings the old number
    back.
    """
    from airflow_streamstate.controller.request.requests import change_request
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

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
        raise click.UsageError("--partitions N says in how many partitions; --suggest suggests a number.")
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
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

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
    from airflow_streamstate.controller.upgrade.requests import RollbackRequest

    controller = session.controller()
    request = RollbackRequest(stream_id, terms_given(RollbackTerms, given), ordering.reason)
    begin = partial(controller.upgrades.begin_rollback, request)
    return _begin_and_run(session, controller, stream_id, begin, if_busy, ordering)


def _calling(session: ShellSession, view: UpgradeView, on_progress: Report) -> Report:
    """As ``on_progress``; also says once that a person has to approve."""
    from airflow_streamstate.controller.upgrade.views import WAITS_FOR_A_PERSON

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
    """Begin at once or when the stream is free, and run to the end; both within the timeout."""
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
    """Take the steps of an upgrade until it is over, print its end, and return the exit status.

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
