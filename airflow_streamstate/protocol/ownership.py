"""Whose a stream is, for people: its owner and its labels; both in its register."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass

MAX_LABELS = 32
MAX_CHARACTERS = 100
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Ownership:
    """Whose a stream is. It names nothing that is run, so a change restarts nothing.

    Attributes:
        owner: a person or a team; "" for none.
        labels: by name, such as ``team`` or ``tier``; a value may be "".
    """

    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def changed(self, owner: str | None = None, labels: Mapping[str, str] | None = None) -> Ownership:
        """The same with another owner, and with these labels in place of all others; None: as they are.

        Raises:
            InvalidRequestError: a name or a value cannot be recorded.
        """
        found = replace(
            self,
            owner=self.owner if owner is None else owner.strip(),
            labels=dict(sorted((self.labels if labels is None else labels).items())),
        )
        found._check()
        return found

    def has(self, label: str) -> bool:
        """Whether it has a label, given as ``NAME`` or ``NAME=VALUE``."""
        name, equals, value = label.partition("=")
        return name in self.labels and (not equals or self.labels[name] == value)

    def _check(self) -> None:
        _check_text("owner", self.owner)
        if len(self.labels) > MAX_LABELS:
            raise InvalidRequestError(
                "a stream cannot have so many labels",
                labels=len(self.labels),
                next_step=f"Give {MAX_LABELS} labels at most.",
            )
        for name, value in self.labels.items():
            _check_name(name)
            _check_text(f"labels.{name}", value)


def check_label(label: str) -> str:
    """The same label, ``NAME`` or ``NAME=VALUE``. Raises InvalidRequestError: no stream can have such a label."""
    _check_name(label.partition("=")[0])
    return label


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            "this cannot be the name of a label",
            name=_shown(name),
            next_step="Use 1 to 63 letters, digits and . _ / - with a letter or digit at both ends.",
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS or not value.isprintable():
        raise InvalidRequestError(
            "this owner or label cannot be recorded",
            name=name,
            value=_shown(value),
            next_step=f"Use one line of at most {MAX_CHARACTERS} characters.",
        )


def _shown(value: object) -> str:
    text = str(value)[:MAX_CHARACTERS]
    return text if text.isprintable() else repr(text)
