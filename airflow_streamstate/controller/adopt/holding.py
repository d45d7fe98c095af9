"""One controller at a time holds an adoption, by a lease in its register; another can take an expired lease."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_streamstate.control.adoption import adoption_lost, adoption_register
from airflow_streamstate.control.lease import Lease
from airflow_streamstate.control.objects import Register, Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.adoption_guard import refuse_stream
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.adoptions import Adoption

HOLD_SECONDS = 60.0
RENEW_SECONDS = 20.0
PATIENCE_SECONDS = 40.0
"""How long ``keep`` tolerates a home that does not answer; then the barrier is taken back."""
SURE_SECONDS = 50.0
"""How long after the last write no other controller can hold the adoption, though the register does not answer."""
CHANGE_TRIES = 2
"""The second try reads back a write whose answer was lost; more tries would outlast ``SURE_SECONDS``."""


class Hold:
    """An adoption that this process alone works on; ``control``: the stream that is to be."""

    def __init__(
        self, context: ControllerContext, control: StreamControl, stored: Stored[Adoption], lease: Lease
    ) -> None:
        self.context = context
        self.control = control
        self._register = adoption_register(control)
        self._stored = stored
        self._lease = lease

    @property
    def adoption(self) -> Adoption:
        """The adoption as this process last wrote it."""
        return self._stored.value

    def keep(self) -> None:
        """Renew the lease where that is due; cheap to call often.

        Raises:
            ConflictError: another controller has taken the adoption.
            UnavailableError, OutcomeUnknownError: the register could not be written for too long.
        """
        if self._lease.is_due(RENEW_SECONDS / HOLD_SECONDS):
            self._change_unless_silent(PATIENCE_SECONDS)

    def confirm(self) -> None:
        """Renew the lease before an act that must not meet another controller's; raises as ``keep``.

        A home that is full, read-only, silent or refuses expired credentials is tolerated for a while, so that barriers
        can be taken back (Law 12).
        """
        self._change_unless_silent(SURE_SECONDS)

    def _change_unless_silent(self, sure_seconds: float) -> None:
        try:
            self.change()
        except (UnavailableError, OutcomeUnknownError, InvalidRequestError):
            if self._lease.age_seconds >= sure_seconds:
                raise

    def has_been_taken(self) -> bool:
        """Whether any controller has completed this adoption, so that a stream relies on its barrier."""
        there = self._register.read()
        known = None if there is None else (there.value.adoption_id, there.value.status)
        return known == (self.adoption.adoption_id, "taken")

    def is_given_up(self) -> bool:
        """Whether this adoption ended without a stream, so that its barriers have to go."""
        there = self._register.read()
        if there is None:
            return False  # removed with its stream, which may have gone on: the barriers stay (Law 14)
        return there.value.adoption_id != self.adoption.adoption_id or there.value.status == "given_up"

    def change(self, **changes: Any) -> None:
        """Write the adoption and renew the lease; raises as ``keep``."""
        with self._lease.renewed() as held_until:

            def edit(there: Adoption) -> Adoption:
                if there.held_by != self.adoption.held_by:
                    raise adoption_lost(there.stream_id)
                return replace(there, **{"held_until": held_until, **changes})

            self._stored = self._register.update(edit, tries=CHANGE_TRIES)

    def release(self) -> None:
        """End the lease; raises as ``keep``."""
        self.change(held_until=self.context.clock.now())


def take_hold(context: ControllerContext, control: StreamControl, wanted: Adoption) -> Hold:
    """Begin this adoption, or continue an existing one of the same checkpoints.

    Raises:
        ConflictError: another controller holds it, it has other checkpoints, the stream exists without it, or its
            folders are not empty.
    """
    lease = Lease(context.clock, HOLD_SECONDS)
    register = adoption_register(control)
    stored = register.read()
    if stored is None or stored.value.status == "given_up":
        refuse_stream(control)
        _refuse_left(context.home, control)
        context.home.begin(context.requested_by)
        begun = wanted if stored is None else replace(wanted, take=stored.value.take + 1)
        try:
            with lease.renewed() as held_until:
                begun = replace(begun, held_until=held_until)
                held = register.create(begun) if stored is None else register.update(lambda _: begun, since=stored)
        except (ObjectExistsError, VersionConflictError):
            raise _under_way(control.stream_id) from None
        return Hold(context, control, held, lease)
    there = stored.value
    if dict(there.checkpoints) != dict(wanted.checkpoints):
        raise ConflictError(
            "this stream's adoption was begun with other checkpoints",
            stream_id=control.stream_id,
            checkpoints=dict(there.checkpoints),
            next_step=f"Name these; or `streamstate adopt {control.stream_id} --give-up` first.",
        )
    held = _go_on_with(context, register, stored, lease, is_stopped=wanted.is_stopped)
    return Hold(context, control, held, lease)


def hold_to_end(context: ControllerContext, control: StreamControl) -> Hold | None:
    """Hold the existing adoption to give it up; None without one. Raises ConflictError where it is held."""
    lease = Lease(context.clock, HOLD_SECONDS)
    register = adoption_register(control)
    stored = register.read()
    if stored is None:
        return None
    held = _go_on_with(context, register, stored, lease, is_stopped=stored.value.is_stopped)
    return Hold(context, control, held, lease)


def _go_on_with(
    context: ControllerContext,
    register: Register[Adoption],
    stored: Stored[Adoption],
    lease: Lease,
    *,
    is_stopped: bool,
) -> Stored[Adoption]:
    there = stored.value
    if there.held_until > context.clock.now():
        raise _under_way(there.stream_id, there)
    held_by = context.clock.new_uuid()
    try:
        with lease.renewed() as held_until:
            return register.update(
                lambda now: replace(now, is_stopped=is_stopped, held_by=held_by, held_until=held_until), since=stored
            )
    except VersionConflictError:
        raise _under_way(there.stream_id) from None


def _refuse_left(home: Home, control: StreamControl) -> None:
    """Check that the folders of the copy and its snapshot are empty: a failed adoption removes them whole.

    They may hold files of an earlier stream, or of another home that keeps its checkpoints at the same place.
    """
    for store in dict.fromkeys((home.checkpoints, home.home)):
        for folder in (layout.deployments_folder(control.stream_id), layout.snapshots_folder(control.stream_id)):
            if next(iter(store.list_objects(f"{folder}/")), None) is not None:
                raise ConflictError(
                    "another stream of this name has files where the adopted query would be copied to",
                    stream_id=control.stream_id,
                    folder=f"{store.uri}/{folder}",
                    next_step="Adopt the query under another name; or move that folder away, if no stream uses it.",
                )


def _under_way(stream_id: str, adoption: Adoption | None = None) -> ConflictError:
    facts = {} if adoption is None else {"requested_by": adoption.requested_by, "begun_at": adoption.begun_at}
    return ConflictError(
        "another adoption of this stream is under way",
        stream_id=stream_id,
        **facts,
        next_step=f"Wait for it; if it was cut short, the same command goes on with it after {HOLD_SECONDS:.0f} s.",
    )
