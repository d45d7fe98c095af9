"""What a person reads of ``upgrade``, ``restart`` and ``rollback``."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from airflow_streamstate.cli.tables import shown
from airflow_streamstate.lifecycle.upgrading.views import UpgradeView, differences_of

_OUTCOMES = {
    "upgraded": ("green", "upgraded"),
    "rolled_back": ("yellow", "rolled back"),
    "refused": ("red", "refused; the stream runs on as before"),
    "failed": ("red", "failed"),
}


def begun(console: Console, view: UpgradeView) -> None:
    """Before any step."""
    asked = view.state.upgrade
    what = "upgrade of" if asked.asked == "upgrade" else "rollback to"
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


def ended(console: Console, view: UpgradeView) -> None:
    """How it ended."""
    go_on = f"is under way; `streamstate upgrade {view.stream_id} --continue` goes on with it"
    colour, words = _OUTCOMES.get(str(view.outcome), ("yellow", go_on))
    last = view.state.last
    console.print(shown(f"{view.stream_id} {view.upgrade_id}: ") + Text(words, colour))
    if last.text:
        console.print(shown(f"  {last.text}"))
    facts = {
        "from": view.state.upgrade.old_deployment_id,
        "to": last.new_deployment_id,
        "back in": last.returned_deployment_id,
        "mode": last.mode,
        "way back": last.way,
        "plan": last.verdict,
        "gap": None if last.gap_seconds is None else f"{last.gap_seconds:g} s",
        "chain of custody": None if last.audit_ok is None else ("whole" if last.audit_ok else "broken: see audit"),
    }
    for name, value in facts.items():
        if value is not None:
            console.print(shown(f"  {name}: {value}"))
    for name, batches in (last.bad_batches or {}).items():
        console.print(shown(f"  of query {name}, batches {batches[0]} to {batches[-1]} are the given-up version's"))
    for each in differences_of(last.report or {}):
        console.print(shown(f"  {each['query']}: {each['code']} ({each['verdict']}): {each['reason']}"))
