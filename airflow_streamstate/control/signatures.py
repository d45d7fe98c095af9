"""The signatures in one home: which records have one, and signing those that a person has looked at."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from airflow_streamstate.errors import DataError, SignatureError, VersionConflictError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import Message, encoded, from_json, object_in
from airflow_streamstate.protocol.ids import is_id
from airflow_streamstate.protocol.signing import SIGNATURE, SigningKeys, is_signed, signed_kind
from airflow_streamstate.store.base import Store, bounded_get

SignatureState = Literal["signed", "older key", "refused", "unreadable"]
_RUNS = (layout.deployments_folder, layout.scratch_folder, layout.upgrades_folder)


@dataclass(frozen=True)
class SignedRecord:
    """A record that has to be signed.

    Attributes:
        state: ``signed`` with the first key; with an ``older key`` that is accepted; ``refused``: no signature, or a
            wrong one; ``unreadable``: no such record is there.
        reason: why it is refused or unreadable; else "".
        plain, version: what was read.
        sha256: of the bytes that were read; "" where they could not be.
    """

    key: str
    kind: str
    state: SignatureState
    reason: str
    plain: Mapping[str, Any] = field(repr=False)
    version: str
    sha256: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """All that would be signed, as it was read."""
        return {name: value for name, value in self.plain.items() if name != SIGNATURE}

    @property
    def is_new(self) -> bool:
        """Whether it has no signature at all: nobody has ever signed it, or somebody has written over it."""
        return not is_signed(self.plain)


def digest_of(records: Iterable[SignedRecord], keys: SigningKeys) -> str:
    """One digest of exactly these records, byte for byte, and of the key that is to sign them."""
    listed = sorted((record.key, record.state, record.sha256) for record in records)
    return hashlib.sha256(json.dumps([keys.key_id, listed]).encode()).hexdigest()


class Signatures:
    """The signatures of one home.

    Args:
        home: the store of the control objects, guarded.
        keys: the first one signs.
    """

    def __init__(self, home: Store, keys: SigningKeys) -> None:
        self._home = home
        self._keys = keys

    def records(self) -> Iterator[SignedRecord]:
        """Every record of the home that has to be signed, in the order of streams.

        Raises:
            UnavailableError, StoreRefusedError, HomeNotFoundError: the store does not answer, or no home is there.
        """
        yield from self._at([layout.home_key()])
        for stream_id in sorted(filter(is_id, self._home.list_folders(""))):
            yield from self._at(self._keys_of(stream_id))

    def look(self, key: str) -> SignedRecord | None:
        """The record under a key that signed records have; None if it does not exist."""
        kind = signed_kind(key)
        if kind is None:
            return None
        plain: Mapping[str, Any] = {}
        version = sha256 = ""
        try:
            stored = bounded_get(self._home, key, Message.most_bytes)
            if stored is None:
                return None
            version, sha256 = stored.version, hashlib.sha256(stored.body).hexdigest()
            plain = object_in(stored.body, key=key)
            from_json(plain, key=key, expected=Message)
            _check_place(plain, key, kind)
            key_id = self._keys.check(key, plain)
        except SignatureError as error:
            return SignedRecord(key, kind, "refused", str(error.context["reason"]), plain, version, sha256)
        except DataError as error:
            reason = str(error.context.get("reason") or error.message)
            return SignedRecord(key, kind, "unreadable", reason, plain, version, sha256)
        state: SignatureState = "signed" if key_id == self._keys.key_id else "older key"
        return SignedRecord(key, kind, state, "", plain, version, sha256)

    def sign(self, record: SignedRecord) -> bool:
        """Sign what was looked at, byte for byte of its content; False where it has changed since, or is unreadable."""
        if record.state == "unreadable":
            return False
        try:
            self._home.replace(record.key, encoded(self._keys.signed(record.key, record.plain)), record.version)
        except VersionConflictError:
            return False
        return True

    def _at(self, keys: list[str]) -> Iterator[SignedRecord]:
        yield from filter(None, map(self.look, keys))

    def _keys_of(self, stream_id: str) -> list[str]:
        keys = [layout.register_key(stream_id), layout.alerts_key(stream_id), layout.adoption_key(stream_id)]
        for folder in (layout.idempotency_folder(stream_id), layout.claimed_places_folder(stream_id)):
            keys += self._listed(f"{folder}/")
        for room in (folder_of(stream_id) for folder_of in _RUNS):
            for run in self._home.list_folders(room):
                folder = f"{room}/{run}"
                keys += [f"{folder}/{name}.json" for name in _ALONE]
                for part in ("launches", "modules", "steps"):
                    keys += self._listed(f"{folder}/{part}/")
        return [key for key in keys if signed_kind(key)]

    def _listed(self, prefix: str) -> list[str]:
        return [info.key for info in self._home.list_objects(prefix) if signed_kind(info.key)]


_ALONE = ("spec", "run", "handover", "upgrade", "lease", "approval", "cancellation")


def _check_place(plain: Mapping[str, Any], key: str, kind: str) -> None:
    said = plain.get("stream_id", layout.stream_of_key(key))
    if plain.get("kind") != kind or said != layout.stream_of_key(key):
        raise DataError("this object belongs elsewhere", reason=f"a {plain.get('kind')} of {said} is there")
