"""Refuses, when a DAG is parsed, what no run of it could use: a wrong word or stream id that is no template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import check_id

_TEMPLATE_MARKS = ("{{", "{%", "{#")


class ChecksLiterals:
    """Mixin of operators and sensors, before Airflow's class; it checks fields as ``__init__`` sets them.

    A templated field is checked again when the task runs, with all other fields.
    """

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The words that a field may have, by field."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, str) and not getattr(self, "_BaseOperator__instantiated", False):
            self._check_literal(name, value)
        super().__setattr__(name, value)

    def _check_literal(self, name: str, value: str) -> None:
        if any(mark in value for mark in _TEMPLATE_MARKS):
            return
        if name == "stream_id":
            check_id(value, "stream id")
        choices = self.literal_choices.get(name)
        if choices is not None and value not in ("", "None", *choices):
            raise InvalidRequestError(
                f"{name} of {type(self).__name__} is none of its words",
                given=value,
                next_step=f"Use one of: {', '.join(choices)}.",
            )
