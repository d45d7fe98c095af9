"""The register of a stream's alerts: its rules, and what was told; every change by compare-and-swap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_streamstate.control.objects import Register, Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.alerts import AlertRegister, AlertRules, Told


class AlertBook:
    """The alerts of one stream; ``by`` is the writer, for the record."""

    def __init__(self, control: StreamControl, by: str = "") -> None:
        self._control = control
        self._by = by
        self._register = Register(
            control.cells,
            layout.alerts_key(control.stream_id),
            AlertRegister,
            self._empty,
            by,
            stream_id=control.stream_id,
        )

    def read(self) -> Stored[AlertRegister] | None:
        """The register as it is; None where nothing was recorded. Raises DataError where it is damaged."""
        return self._register.read()

    def rules(self) -> AlertRules:
        """The rules, by default the usual ones. Raises as ``read``."""
        stored = self.read()
        return AlertRules() if stored is None else stored.value.rules

    def change_rules(self, given: Mapping[str, Any]) -> AlertRules:
        """Change these values of the rules.

        Raises:
            InvalidRequestError: a value is unknown or out of its range.
            UnavailableError: other writers kept changing the register.
        """
        return self._register.update(lambda one: replace(one, rules=one.rules.changed(given))).value.rules

    def record(self, stored: Stored[AlertRegister] | None, audience: str, told: Told) -> Stored[AlertRegister]:
        """Record what an audience is told, and what is owed to it; afterwards the caller tells that.

        Args:
            stored: the register that this was decided on; None where there was none.

        Returns:
            The register with it.

        Raises:
            ConflictError: another writer was first: read again, and decide again.
            OutcomeUnknownError: it stayed unknown whether this landed.
        """

        def edit(one: AlertRegister) -> AlertRegister:
            return replace(one, audiences={**one.audiences, audience: told})

        if stored is None:
            return self._register.create(edit(replace(self._empty(), write_id=self._control.clock.new_uuid())))
        return self._register.update(edit, since=stored)

    def _empty(self) -> AlertRegister:
        now = self._control.clock.now()
        return AlertRegister(self._control.stream_id, write_id="", updated_at=now, updated_by=self._by)
