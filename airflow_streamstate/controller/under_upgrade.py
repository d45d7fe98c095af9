"""Only the steps of the upgrade that is under way may move a stream; the steps of an ended upgrade may not (Law 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, DataError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.register import StreamRegister

if TYPE_CHECKING:  # imported where an upgrade is under way: every status asks, and few streams have one
    from airflow_streamstate.control.upgrades import Owner, UpgradeJournal, UpgradeState

HoldKind = Literal["", "untouched", "waiting", "moving", "abandoned", "gone", "unreadable"]
"""What an upgrade that holds a stream does: it has touched nothing yet; it waits for a person's answer; it moves the
stream, so that no driver may run; nobody drives it any more; the same of one that has touched nothing, so that the next
command or watcher ends it; its records cannot be read."""


@dataclass(frozen=True)
class UpgradeHold:
    """The upgrade that holds a stream.

    Attributes:
        text: its id, phase and owner, in one line; "" where none holds the stream.
        owner: who drives it, by the last sign of life; None where nobody has to.
        is_of_watchers: a watcher has begun it, and any watcher drives it.
    """

    upgrade_id: str = ""
    kind: HoldKind = ""
    text: str = ""
    next_step: str = ""
    owner: Owner | None = None
    is_of_watchers: bool = False


class BusyError(ConflictError):
    """Another upgrade or rollback holds the stream, or has just moved it."""


class NotHeldError(ConflictError):
    """The calling upgrade does not hold the stream: it is over, or it never held it."""


def refuse_during_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """Refuse a caller that may not move the stream.

    Args:
        register: as it was read; the caller changes it by compare-and-swap against this version.
        upgrade_id: the upgrade whose step asks; None for any other caller.

    Raises:
        BusyError: another upgrade is under way.
        NotHeldError: ``upgrade_id`` does not hold the stream, or another worker ended it meanwhile (Law 4).
    """
    if upgrade_id is None:
        refuse_another_upgrade(control, register, None)
        return
    held_by = None if register is None else register.upgrade_id
    if held_by != upgrade_id or not _journal(control).is_under_way(upgrade_id):
        raise NotHeldError(
            "this upgrade does not hold the stream",
            stream_id=control.stream_id,
            upgrade_id=upgrade_id,
            held_by=held_by,
            next_step=f"`streamstate status {control.stream_id}` shows where it stands.",
        )


def refuse_another_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """Raise BusyError while another upgrade is under way; first ends one whose task is gone and touched nothing."""
    under_way = None if register is None else register.upgrade_id
    if under_way is None or under_way == upgrade_id:
        return
    journal = _journal(control)
    if not journal.is_under_way(under_way) or journal.end_abandoned(under_way):
        return
    try:
        upgrade = journal.upgrade(under_way)
    except DataError:
        upgrade = None
    is_asking = upgrade is not None and upgrade.terms.waits_for_approval and journal.approval(under_way) is None
    raise BusyError(
        f"{'a rollback' if upgrade is not None and upgrade.asked == 'rollback' else 'an upgrade'} of this stream is"
        " under way",
        stream_id=control.stream_id,
        upgrade_id=under_way,
        requested_by=None if upgrade is None else upgrade.requested_by,
        begun_at=None if upgrade is None else upgrade.created_at,
        next_step=_ways_out(control.stream_id, is_asking=is_asking),
    )


def _journal(control: StreamControl) -> UpgradeJournal:
    from airflow_streamstate.control.upgrades import UpgradeJournal

    return UpgradeJournal(control)


def _ways_out(stream_id: str, *, is_asking: bool) -> str:
    answer = ", `approve` or `reject` answers its plan" if is_asking else ""
    return f"`streamstate continue {stream_id}` finishes it, `cancel` gives it up{answer}."


def hold_of(control: StreamControl, register: StreamRegister) -> UpgradeHold:
    """The upgrade that holds the stream, as far as clocks tell whether somebody drives it."""
    upgrade_id = register.upgrade_id
    if upgrade_id is None:
        return UpgradeHold()
    from airflow_streamstate.control.upgrades import OWN_REQUEST

    journal = _journal(control)
    try:
        state = journal.state(upgrade_id)
    except DataError:
        return UpgradeHold(upgrade_id, "unreadable", f"{upgrade_id}, which cannot be read")
    if state is None or state.is_over:
        return UpgradeHold()
    is_asking = state.upgrade.terms.waits_for_approval and journal.approval(upgrade_id) is None
    owner = journal.owner(state)
    gone = owner if owner is not None and owner.is_gone(control.clock.now()) else None
    kind: HoldKind = "untouched" if state.has_touched_nothing else "moving"
    if gone is not None:
        kind = "gone" if state.has_touched_nothing and state.upgrade.ends_untouched else "abandoned"
    elif journal.waits_for_a_person(state):
        kind = "waiting"
    return UpgradeHold(
        upgrade_id,
        kind,
        f"{upgrade_id} {state.phase_for_people}, by {state.upgrade.requested_by}{_gone_words(state, gone)}",
        "" if kind == "gone" else f"An upgrade holds the stream: {_ways_out(control.stream_id, is_asking=is_asking)}",
        owner,
        state.upgrade.request_id.startswith(OWN_REQUEST),
    )


def _gone_words(state: UpgradeState, gone: Owner | None) -> str:
    if gone is None:
        return ""
    since = f"is gone since {format_time(gone.until_at)}"
    if state.has_touched_nothing and state.upgrade.ends_untouched:
        return f"; its task {since}, so it no longer holds the stream"
    goes = state.phase in ("unhealthy", "trying", "returning", "returned") or state.upgrade.if_abandoned == "finish"
    return f"; {gone.name}, who drove it, {since}: a watcher {'finishes it' if goes else 'rolls it back'}"
