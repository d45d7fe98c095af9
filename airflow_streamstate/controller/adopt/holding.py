"""Who works on an adoption: one at a time, by the register; who is gone for too long is gone on with by another."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_streamstate.control.adoption import AdoptionRegister
from airflow_streamstate.control.objects import Stored
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
"""So long a home that does not answer is waited for; then the barrier is taken back."""
SURE_SECONDS = 50.0
"""So long after it was last written nobody else can have it, also where its register does not answer."""


class Hold:
    """An adoption that is worked on by this process alone.

    Args:
        means: of the controller.
        control: the stream.
        stored: the adoption, held by us.
        began_seconds: the monotonic time before that was written: how long the write took counts.
    """

    def __init__(
        self, means: ControllerContext, control: StreamControl, stored: Stored[Adoption], began_seconds: float
    ) -> None:
        self._means = means
        self._register = AdoptionRegister(control)
        self._stored = stored
        self._renewed = began_seconds

    @property
    def adoption(self) -> Adoption:
        """As it was last written."""
        return self._stored.value

    def keep(self) -> None:
        """Stay the one who works on it; cheap to call often. A home that does not answer is waited for, as long as
        nobody else can have it.

        Raises:
            ConflictError: another has gone on with it.
            UnavailableError, OutcomeUnknownError: its register cannot be written for too long.
        """
        if self._age_seconds() >= RENEW_SECONDS:
            self._change_unless_silent(PATIENCE_SECONDS)

    def confirm(self) -> None:
        """Be sure to be the one who works on it, before anything is done that another may count on not to be done.

        Barriers are taken back also while the home's disk is full or read-only, does not answer, or refuses credentials
        that are over (Law 12); raises as ``keep``.
        """
        self._change_unless_silent(SURE_SECONDS)

    def _change_unless_silent(self, sure_seconds: float) -> None:
        try:
            self.change()
        except (UnavailableError, OutcomeUnknownError, InvalidRequestError):
            if self._age_seconds() >= sure_seconds:
                raise

    def has_been_taken(self) -> bool:
        """Whether it was gone on with to its end, by whomever: a stream may count on its barrier.

        Raises:
            UnavailableError: its register cannot be read.
        """
        there = self._register.read()
        known = None if there is None else (there.value.adoption_id, there.value.status)
        return known == (self.adoption.adoption_id, "taken")

    def is_given_up(self) -> bool:
        """Whether nobody goes on with this very adoption any more: what it put anywhere is in the way.

        Raises:
            UnavailableError: its register cannot be read.
        """
        there = self._register.read()
        if there is None:
            return False  # with its stream, which may have gone on from it: what bars the old query stays (Law 14)
        return there.value.adoption_id != self.adoption.adoption_id or there.value.status == "given_up"

    def change(self, **changes: Any) -> None:
        """Write it, still held; raises as ``keep``."""
        try:
            self._write(changes)
        except VersionConflictError:
            self._find_own()
            self._write(changes)

    def _write(self, changes: dict[str, Any]) -> None:
        began_seconds = self._means.clock.monotonic_seconds()
        held_until = self._means.clock.now() + timedelta(seconds=HOLD_SECONDS)
        changed = {"held_until": held_until, **changes, "write_id": self._means.clock.new_uuid()}
        self._stored = self._register.replace(replace(self._stored.value, **changed), self._stored.version)
        self._renewed = began_seconds

    def _find_own(self) -> None:
        """A write of ours may have landed though nobody said so (Law 8); by another's the adoption is lost to us."""
        there = self._register.read()
        if there is None or there.value.held_by != self.adoption.held_by:
            raise ConflictError(
                "another has gone on with this adoption",
                stream_id=self.adoption.stream_id,
                next_step=f"`streamstate status {self.adoption.stream_id}` shows what became of it.",
            )
        self._stored = there

    def _age_seconds(self) -> float:
        """By both clocks: one of them may have stood still while this machine slept, the other may be set."""
        waited = self._means.clock.monotonic_seconds() - self._renewed
        left = (self.adoption.held_until - self._means.clock.now()).total_seconds()
        return max(waited, HOLD_SECONDS - left)

    def release(self) -> None:
        """Let another go on with it at once; raises as ``keep``."""
        self.change(held_until=self._means.clock.now())


def take_hold(means: ControllerContext, control: StreamControl, wanted: Adoption) -> Hold:
    """Begin this adoption, or go on with the one that there is.

    Args:
        means: of the controller.
        control: the stream.
        wanted: how it would begin; of one that is there checkpoints must be the same.

    Raises:
        ConflictError: another works on it, or it is of other checkpoints, or the stream came to be without it, or
            something lies where its own would.
    """
    began_seconds = means.clock.monotonic_seconds()
    register = AdoptionRegister(control)
    stored = register.read()
    if stored is None or stored.value.status == "given_up":
        refuse_stream(control)
        _refuse_left(means.home, control)
        means.home.begin(means.requested_by)
        begun = wanted if stored is None else replace(wanted, take=stored.value.take + 1)
        try:
            held = register.create(begun) if stored is None else register.replace(begun, stored.version)
        except (ObjectExistsError, VersionConflictError):
            raise _under_way(control.stream_id) from None
        return Hold(means, control, held, began_seconds)
    there = stored.value
    if dict(there.checkpoints) != dict(wanted.checkpoints):
        raise ConflictError(
            "this stream's adoption was begun with other checkpoints",
            stream_id=control.stream_id,
            checkpoints=dict(there.checkpoints),
            next_step=f"Name these; or `streamstate adopt {control.stream_id} --give-up` first.",
        )
    held = _go_on_with(means, register, stored, is_stopped=wanted.is_stopped)
    return Hold(means, control, held, began_seconds)


def hold_to_end(means: ControllerContext, control: StreamControl) -> Hold | None:
    """The adoption that there is, whatever its checkpoints, to be given up; None where there is none.

    Raises:
        ConflictError: another works on it.
    """
    began_seconds = means.clock.monotonic_seconds()
    register = AdoptionRegister(control)
    stored = register.read()
    if stored is None:
        return None
    held = _go_on_with(means, register, stored, is_stopped=stored.value.is_stopped)
    return Hold(means, control, held, began_seconds)


def _go_on_with(
    means: ControllerContext, register: AdoptionRegister, stored: Stored[Adoption], *, is_stopped: bool
) -> Stored[Adoption]:
    there, now = stored.value, means.clock.now()
    if there.held_until > now:
        raise _under_way(there.stream_id, there)
    mine = replace(
        there,
        is_stopped=is_stopped,
        held_by=means.clock.new_uuid(),
        held_until=now + timedelta(seconds=HOLD_SECONDS),
        write_id=means.clock.new_uuid(),
    )
    try:
        return register.replace(mine, stored.version)
    except VersionConflictError:
        raise _under_way(there.stream_id) from None


def _refuse_left(home: Home, control: StreamControl) -> None:
    """See that nothing lies where the copy and its snapshot will: they are laid there, and removed, with all of it.

    An earlier stream may have left it, or another home with the same place of checkpoints has a stream of this name.
    """
    for store in dict.fromkeys((home.checkpoints, home.home)):
        for folder in (layout.deployments_folder(control.stream_id), layout.snapshots_folder(control.stream_id)):
            if next(iter(store.list_objects(f"{folder}/")), None) is not None:
                raise ConflictError(
                    "something of another stream of this name lies where the adopted query would",
                    stream_id=control.stream_id,
                    folder=f"{store.uri}/{folder}",
                    next_step="Adopt the query under another name; or move that folder away, if it is nobody's.",
                )


def _under_way(stream_id: str, adoption: Adoption | None = None) -> ConflictError:
    facts = {} if adoption is None else {"requested_by": adoption.requested_by, "begun_at": adoption.begun_at}
    return ConflictError(
        "another adoption of this stream is under way",
        stream_id=stream_id,
        **facts,
        next_step=f"Wait for it; if it was cut short, the same command goes on with it after {HOLD_SECONDS:.0f} s.",
    )
