"""What is recorded of a stream besides its versions: owner, labels, alert rules, retention, restarts."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.policies import AlertRules, Ownership, RestartPolicy, RetentionPolicy
from airflow_streamstate.protocol.records import StreamRegister


class StreamDetails:
    """Owner, labels, restart policy, alert rules and retention of the streams of one home; a change starts and ends
    nothing."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def ownership(self, stream_id: str) -> Ownership:
        """The owner and the labels. Raises StreamNotFoundError."""
        return self._existing(stream_id).need_register().value.ownership

    def change_ownership(
        self,
        stream_id: str,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        more_labels: Mapping[str, str] | None = None,
        without: Set[str] = frozenset(),
    ) -> Ownership:
        """Change the owner and the labels.

        Args:
            owner: "" for no owner; None: as it is.
            labels: all labels; None: those that the stream has.
            more_labels: labels to add to those, or to change.
            without: names of labels to remove.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: a name or a value cannot be recorded, or there is no label to remove.
        """

        def change(register: StreamRegister) -> StreamRegister:
            before = register.ownership
            known = {**(before.labels if labels is None else labels), **(more_labels or {})}
            kept = {name: value for name, value in known.items() if name not in without}
            return replace(register, ownership=before.changed(owner, kept))

        control = self._existing(stream_id)
        for name in sorted(without - set(control.need_register().value.ownership.labels)):
            raise InvalidRequestError(
                "the stream has no such label",
                stream_id=stream_id,
                name=name[:60],
                next_step=f"`streamstate label {stream_id}` shows its labels.",
            )
        return self._context.update_register(control, change).value.ownership

    def restart_policy(self, stream_id: str) -> RestartPolicy:
        """The restart policy. Raises StreamNotFoundError."""
        return self._existing(stream_id).need_register().value.restart_policy

    def checked_restarts(self, stream_id: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values, which fit the restart policy of the stream. Raises as ``change_restart_policy``."""
        if given:
            self.restart_policy(stream_id).changed(given)
        return given

    def change_restart_policy(self, stream_id: str, given: Mapping[str, Any]) -> RestartPolicy:
        """Change these values of the restart policy.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: a value is unknown or out of its range.
        """

        def change(register: StreamRegister) -> StreamRegister:
            return replace(register, restart_policy=register.restart_policy.changed(given))

        return self._context.update_register(self._existing(stream_id), change).value.restart_policy

    def alert_rules(self, stream_id: str) -> AlertRules:
        """The alert rules. Raises StreamNotFoundError; DataError: they are damaged."""
        return AlertBook(self._existing(stream_id)).rules()

    def change_alert_rules(self, stream_id: str, given: Mapping[str, Any]) -> AlertRules:
        """Change these values of the alert rules.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidRequestError: a value is unknown or out of its range.
        """
        return AlertBook(self._existing(stream_id), self._context.requested_by).change_rules(given)

    def retention(self, stream_id: str) -> RetentionPolicy | None:
        """Which snapshots stay when it is pruned; None where nothing is recorded. Raises StreamNotFoundError."""
        return self._existing(stream_id).need_register().value.retention

    def change_retention(self, stream_id: str, policy: RetentionPolicy | None) -> RetentionPolicy | None:
        """Record which snapshots stay, in place of what was recorded; None: nothing is.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        control = self._existing(stream_id)
        changed = self._context.update_register(control, lambda register: replace(register, retention=policy))
        return changed.value.retention

    def _existing(self, stream_id: str) -> StreamControl:
        control = self._context.home.need_stream(stream_id)
        control.need_register()
        return control
