"""What a person reads of ``upgrade``, ``restart`` and ``rollback``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from airflow_streamstate.cli.downtime_tables import downtime_words, waterfall
from airflow_streamstate.cli.failures import without_launch_folder
from airflow_streamstate.cli.tables import shown
from airflow_streamstate.controller.upgrade.views import UpgradeView, differences_of
from airflow_streamstate.protocol.upgrades import AfterStop

_OUTCOMES = {
    "upgraded": ("green", "upgraded"),
    "given_up": ("yellow", "given up; the old version is back"),
    "rolled_back": ("yellow", "rolled back"),
    "refused": ("red", "refused; the stream runs on as before"),
    "failed": ("red", "failed"),
}
_CANCELLED = {
    "given_up": ("yellow", "cancelled; the old version is back"),
    "rolled_back": ("yellow", "cancelled; the old version is back"),
    "refused": ("yellow", "cancelled; the stream runs on as before"),
}


def begun(console: Console, view: UpgradeView) -> None:
    """Before any step."""
    asked = view.state.upgrade
    what = "upgrade of" if asked.asked == "upgrade" else "rollback to the version of"
    console.print(shown(f"{view.stream_id} {view.upgrade_id}: {what} {asked.old_deployment_id}"))


def step(console: Console, line: str) -> None:
    """One step, as it is taken."""
    console.print(shown(f"  {line}"))


def interrupted(console: Console, view: UpgradeView) -> None:
    """After Ctrl-C."""
    console.print(
        shown(
            f"{view.stream_id} {view.upgrade_id}: interrupted; before the stop nothing happens, after it a version is"
            " brought up first. Ctrl-C again leaves at once."
        )
    )


def ended(console: Console, view: UpgradeView, cancels: AfterStop | None = None) -> None:
    """How it ended.

    Args:
        console: printed on.
        view: the upgrade.
        cancels: what whoever reads this wanted who cancelled it; None where he did not.
    """
    go_on = f"is under way; `streamstate upgrade {view.stream_id} --continue` goes on with it"
    outcomes = _OUTCOMES | _CANCELLED if view.is_cancelled else _OUTCOMES
    colour, words = outcomes.get(str(view.outcome), ("yellow", go_on))
    console.print(shown(f"{view.stream_id} {view.upgrade_id}: ") + Text(words, colour))
    last = view.state.last
    if last.text:
        console.print(shown(f"  {without_launch_folder(last.text)}"))
    for warning in last.warnings or ():
        console.print(shown("  ") + Text("warning", "yellow") + shown(f": {warning}"))
    for name, value in _facts(view):
        if value is not None:
            console.print(shown(f"  {name}: {value}"))
    waterfall(console, view.downtimes)
    for line in _batches(view):
        console.print(shown(f"  {line}"))
    for each in differences_of(last.report or {}):
        console.print(shown(f"  {each['query']}: {each['code']} ({each['verdict']}): {each['reason']}"))
    next_step = _next_step(view, cancels)
    if next_step:
        console.print(shown(f"-> {next_step}"))


def _next_step(view: UpgradeView, cancels: AfterStop | None) -> str:
    if cancels is not None and view.is_end_of_cancel(cancels):
        return ""
    if cancels is not None and view.outcome == "upgraded":
        return f"It was over before it could be cancelled; `streamstate rollback {view.stream_id}` goes back."
    error = view.as_error()
    return "" if error is None else error.next_step


def _facts(view: UpgradeView) -> Iterator[tuple[str, object]]:
    """From where to where; a rollback goes from the version that is current to that of an older deployment."""
    last, old_id = view.state.last, view.state.upgrade.old_deployment_id
    if view.state.upgrade.asked == "rollback":
        yield "from", last.new_deployment_id
        yield "to", f"the version of {old_id}"
        yield "runs in", last.returned_deployment_id
    else:
        yield "from", old_id
        yield "to", last.new_deployment_id
        yield "back in", last.returned_deployment_id
    yield "mode", last.mode
    yield "way back", last.way
    yield "plan", last.verdict
    yield "downtime", downtime_words(view.downtimes)
    yield "no query ran", None if view.not_running_seconds is None else f"for {view.not_running_seconds:g} s"
    if last.audit_ok is False:
        yield "chain of custody", "broken: see audit"
    elif last.audit_ok and view.outcome in ("upgraded", "given_up", "rolled_back"):  # of "failed" it would be praise
        yield "chain of custody", "whole"


def _batches(view: UpgradeView) -> Iterator[str]:
    """What the version that was given up committed, and what it only began."""
    last = view.state.last
    bad, begun_ids = last.bad_batches or {}, last.begun_batches or {}
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
    return ", and gone back behind" if view.state.last.way == "undo" else ""


def _again(view: UpgradeView) -> str:
    """Of a batch that was begun: who runs it again, over the same bounds. After an undo there are none to be kept."""
    last = view.state.last
    if last.way == "undo":
        return _undone(view)
    is_done = view.is_back
    return f" and {'run again by' if is_done else 'is to be run again by'} {last.returned_deployment_id}"
