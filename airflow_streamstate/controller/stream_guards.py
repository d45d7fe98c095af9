"""Who may act on a stream: requests with one id (Law 2), adoptions, upgrades under way (Law 4), retired streams."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl, adoption_register
from airflow_streamstate.errors import ConflictError, DataError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import check_id
from airflow_streamstate.protocol.records import StreamRegister

if TYPE_CHECKING:
    from airflow_streamstate.control.upgrade_journal import Owner, UpgradeJournal, UpgradeState
    from airflow_streamstate.protocol.records import RequestRecord
    from airflow_streamstate.protocol.scratch import ScratchRun
    from airflow_streamstate.protocol.upgrades import Upgrade


def create_unadopted(control: StreamControl, register: StreamRegister) -> Stored[StreamRegister]:
    """Create the register of a stream that is not being adopted.

    Raises:
        ConflictError: the stream is being adopted; no register is left of it.
        ObjectExistsError: the stream has a register.
    """
    refuse_adopted(control)
    stored = control.create_register(register)
    try:
        refuse_adopted(control)
    except StreamStateError:
        with suppress(StreamStateError):  # the adoption finds a register that stays, and ends
            control.home.delete(layout.register_key(control.stream_id), stored.version)
        raise
    return stored


def refuse_stream(control: StreamControl) -> None:
    """Refuse an adoption under the name of an existing stream.

    Raises:
        ConflictError: the stream exists; its checkpoints are where those of the adoption would be.
        MalformedMessageError: the stream exists, and its register is gone.
    """
    if control.register_or_lost() is not None:
        raise ConflictError(
            "this home already has a stream of this name",
            stream_id=control.stream_id,
            home=control.home.uri,
            next_step="Adopt the query under another name; `--give-up` ends the adoption started under this one.",
        )


def refuse_adopted(control: StreamControl) -> None:
    """Refuse a stream that is being adopted, and one that came from an adoption that was abandoned: its query continued
    by itself (Law 14).

    Raises:
        ConflictError: the stream is one of these.
    """
    stored = adoption_register(control).read()
    if stored is None:
        return
    register = control.register()
    has_deployment = register is not None and register.value.deployment_id is not None
    if stored.value.status == "given_up":
        if has_deployment and stored.value.snapshot_id:
            raise ConflictError(
                "the adoption of this stream was abandoned: the query continues by itself, over the same batches",
                stream_id=control.stream_id,
                checkpoints=dict(stored.value.checkpoints),
                next_step="Adopt the query under another name; `streamstate retire --delete` frees this one.",
            )
        return
    if not has_deployment:
        raise ConflictError(
            "a query is being adopted as this stream",
            stream_id=control.stream_id,
            checkpoints=dict(stored.value.checkpoints),
            requested_by=stored.value.requested_by,
            begun_at=stored.value.begun_at,
            next_step=f"Finish it with the same `streamstate adopt`; or `streamstate adopt {control.stream_id}"
            " --give-up` first.",
        )


# One request id identifies one request (Law 2).

Recorded: TypeAlias = "RequestRecord | ScratchRun | Upgrade"
"""The record of a request; each kind keeps the digest of the request."""
_BECAME: Mapping[str, Mapping[str, str]] = {
    "RequestRecord": {"verb": "verb", "deployment_id": "deployment_id"},
    "ScratchRun": {"rehearsal_id": "run_id"},
    "Upgrade": {"upgrade_id": "upgrade_id"},
}
"""What a request became, by the kind of its record: the name in an error, and the field."""


def request_id_or_new(request_id: str | None, clock: Clock) -> str:
    """The given request id, or a new one for None. Raises InvalidRequestError for a malformed id."""
    return clock.new_uuid() if request_id is None else check_id(request_id, "request id")


def check_same_request(recorded: Recorded, digest: str) -> None:
    """Raise ConflictError where a request id was recorded for a request with another digest."""
    if recorded.request_digest != digest:
        raise ConflictError(
            "this request id was used for something else",
            request_id=recorded.request_id,
            **{name: getattr(recorded, of) for name, of in _BECAME[recorded.kind].items()},
            recorded_at=recorded.created_at,
            next_step="Use a new request id; one id is for one set of files and arguments.",
        )


# Only the steps of the upgrade that is under way may move a stream; the steps of an ended upgrade may not (Law 4).

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
        is_of_watchers: a watcher has started it, and any watcher drives it.
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
    """The calling upgrade does not hold the stream: it has ended, or it never held it."""


def refuse_during_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """Refuse a caller that may not move the stream.

    Args:
        register: as it was read; the caller changes it by compare-and-swap against this version.
        upgrade_id: the upgrade whose step asks; None for any other caller.

    Raises:
        BusyError: another upgrade is under way.
        NotHeldError: ``upgrade_id`` does not hold the stream, or another worker ended it in the meantime (Law 4).
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
            next_step=f"`streamstate status {control.stream_id}` shows its state.",
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
    from airflow_streamstate.control.upgrade_journal import UpgradeJournal

    return UpgradeJournal(control)


def _ways_out(stream_id: str, *, is_asking: bool) -> str:
    answer = ", `approve` or `reject` answers its plan" if is_asking else ""
    return f"`streamstate continue {stream_id}` finishes it, `cancel` gives it up{answer}."


def hold_of(control: StreamControl, register: StreamRegister) -> UpgradeHold:
    """The upgrade that holds the stream, as far as clocks show whether somebody drives it."""
    upgrade_id = register.upgrade_id
    if upgrade_id is None:
        return UpgradeHold()
    from airflow_streamstate.control.upgrade_journal import OWN_REQUEST

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


# Retired streams start only with ``--revive``.


def refuse_retired(register: StreamRegister | None, *, revive: bool = False) -> None:
    """Refuse to start a retired stream.

    Args:
        register: None for a stream that was never deployed.
        revive: start a retired stream all the same.

    Raises:
        ConflictError: the stream is retired and not revived, or is being deleted.
    """
    retirement = None if register is None else register.retirement
    if register is None or retirement is None or (revive and not retirement.is_deleting):
        return
    facts = {"retired_by": retirement.retired_by, "retired_at": retirement.retired_at, "reason": retirement.reason}
    if retirement.is_deleting:
        raise ConflictError(
            "this stream is being deleted",
            stream_id=register.stream_id,
            **facts,
            next_step=f"`streamstate retire {register.stream_id} --delete` finishes that; then its name is free.",
        )
    raise ConflictError(
        "this stream is retired",
        stream_id=register.stream_id,
        **facts,
        next_step=f"`streamstate deploy {register.stream_id} --revive` deploys it all the same.",
    )
