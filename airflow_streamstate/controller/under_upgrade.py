"""While an upgrade is under way, its steps alone move the stream; and once it is over, they move it no more."""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrades import UpgradeJournal
from airflow_streamstate.errors import ConflictError, DataError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.register import StreamRegister


class BusyError(ConflictError):
    """Another upgrade or rollback holds the stream, or has just moved it: ask again once that one is over."""


class NotHeldError(ConflictError):
    """The upgrade that asks does not hold the stream: it is over, or it never came to hold it."""


def refuse_during_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """See that whoever asks may move the stream.

    Args:
        control: the stream.
        register: of it, as it was read; what is moved is changed by compare-and-swap against just this one.
        upgrade_id: the upgrade that asks; None for whatever is asked for by itself.

    Raises:
        ConflictError: an upgrade is under way; whose, and how it is finished or given up.
        NotHeldError: the upgrade that asks does not hold the stream, or not any more: somebody else brought it to its
            end while this step of it slept (Law 4).
    """
    if upgrade_id is None:
        refuse_another_upgrade(control, register, None)
        return
    held_by = None if register is None else register.upgrade_id
    if held_by != upgrade_id or not UpgradeJournal(control).is_under_way(upgrade_id):
        raise NotHeldError(
            "this upgrade does not hold the stream",
            stream_id=control.stream_id,
            upgrade_id=upgrade_id,
            held_by=held_by,
            next_step=f"`streamstate status {control.stream_id}` shows where it stands.",
        )


def refuse_another_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """See that no other upgrade than this one is under way. One whose task is gone before it touched anything is ended.

    Raises:
        BusyError: one is; whose, and how it is finished or given up.
    """
    under_way = None if register is None else register.upgrade_id
    if under_way is None or under_way == upgrade_id:
        return
    journal = UpgradeJournal(control)
    if not journal.is_under_way(under_way) or journal.end_abandoned(under_way):
        return
    try:
        upgrade = journal.upgrade(under_way)
    except DataError:
        upgrade = None
    is_asking = upgrade is not None and upgrade.needs_approval and journal.approval(under_way) is None
    answer = ", `approve` or `reject` answers its plan" if is_asking else ""
    raise BusyError(
        f"{'a rollback' if upgrade is not None and upgrade.asked == 'rollback' else 'an upgrade'} of this stream is"
        " under way",
        stream_id=control.stream_id,
        upgrade_id=under_way,
        requested_by=None if upgrade is None else upgrade.requested_by,
        begun_at=None if upgrade is None else upgrade.created_at,
        next_step=f"`streamstate continue {control.stream_id}` finishes it, `cancel` gives it up{answer}.",
    )


def describe_upgrade(control: StreamControl, register: StreamRegister) -> str:
    """The upgrade that holds the stream, how far it has come, and whose it is; "" for none."""
    if register.upgrade_id is None:
        return ""
    journal = UpgradeJournal(control)
    try:
        state = journal.state(register.upgrade_id)
    except DataError:
        return f"{register.upgrade_id}, which cannot be read"
    if state is None or state.is_over:
        return ""
    lease = journal.abandoned_lease(state)
    gone = "" if lease is None else f"; its task is gone since {format_time(lease.until_at)}, so it holds nothing up"
    return f"{register.upgrade_id} {state.phase_for_people}, by {state.upgrade.requested_by}{gone}"
