"""The requests for an upgrade and for a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_streamstate.controller.request.literal_secrets import check_secrets
from airflow_streamstate.controller.request.requests import Change, as_plain
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.codec import fields_json
from airflow_streamstate.protocol.ids import check_stream_id
from airflow_streamstate.protocol.references import is_reference, split_argument
from airflow_streamstate.protocol.terms.upgrade import RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.terms.version import digest_of


@dataclass(frozen=True)
class UpgradeRequest:
    """A stream is to run another version on its state.

    Attributes:
        change: what changes; everything else stays as it runs now. Without a change this is a restart. Or all of a
            version.
        terms: how the new version takes over.

    Raises:
        InvalidRequestError: the terms do not fit the change.
    """

    change: Change
    terms: UpgradeTerms = field(default_factory=UpgradeTerms)

    def __post_init__(self) -> None:
        self._check_rewrite()
        check_undo_command(self.terms.undo_command)

    def _check_rewrite(self) -> None:
        terms = self.terms
        if self.change.rewrite is None:
            return
        if terms.mode not in ("auto", "restore") or terms.allow_drain:
            raise InvalidRequestError(
                "state that is written anew is restored, not drained",
                mode=terms.mode,
                allow_drain=terms.allow_drain,
                next_step="Leave out the mode and allow_drain; or drain, and give the new version its settings (conf).",
            )
        if not terms.rehearse:
            raise InvalidRequestError(
                "state is written anew only after a rehearsal on a fork of it, and rehearse is off",
                rehearse=terms.rehearse,
                next_step="Leave out --no-rehearsal.",
            )

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.change.stream_id

    @property
    def digest(self) -> str:
        """Over the whole request. Raises InvalidRequestError where a file cannot be read."""
        return digest_of({"verb": "upgrade", "change": self.change.digest, "terms": fields_json(self.terms)})


@dataclass(frozen=True)
class RollbackRequest:
    """A stream is to run again what it ran before its current deployment, or before an older snapshot.

    Attributes:
        terms: how that version takes over.

    Raises:
        InvalidRequestError: an option is wrong.
    """

    stream_id: str
    terms: RollbackTerms = field(default_factory=RollbackTerms)
    reason: str = ""

    def __post_init__(self) -> None:
        check_stream_id(self.stream_id)
        check_undo_command(self.terms.undo_command)

    @property
    def recorded_terms(self) -> RollbackTerms:
        """The terms as they are recorded: to an older snapshot only an undo leads."""
        return self.terms if self.terms.snapshot_id is None else replace(self.terms, strategy="undo")

    @property
    def digest(self) -> str:
        """Over the whole request."""
        asked = {"stream_id": self.stream_id, "terms": self.terms, "reason": self.reason}
        return digest_of({"verb": "rollback", **as_plain(asked)})


def check_undo_command(words: Sequence[str]) -> None:
    """Raises InvalidRequestError where the command seems to hold a secret: it is recorded and run as it is."""
    try:
        check_secrets({}, words, {}, may_be_literal=False)
        is_plain = not any(is_reference(split_argument(word)[1]) for word in words)
    except InvalidRequestError:
        is_plain = False
    if not is_plain:
        raise InvalidRequestError(
            "this command seems to hold a secret, or a reference to one, and would be recorded as it is",
            command=words[0],
            next_step="Have it read the secret itself, from a file or from a variable of the driver's environment.",
        )
