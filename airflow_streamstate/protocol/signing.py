"""Signatures of the objects that only controllers write, and the keys under which these objects are stored."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import field

from airflow_streamstate.errors import InvalidRequestError, SignatureError
from airflow_streamstate.frozen import dataclass

SIGNATURE = "signature"
SIGNING_KEY_VARIABLE = "STREAMSTATE_SIGNING_KEY"
MIN_KEY_CHARACTERS = 32
_PURPOSE = b"streamstate record 1\0"
_PURPOSE_OF_ID = b"streamstate key id 1\0"
_SEPARATORS = re.compile(r"[\s,]+")
_FORM = re.compile(r"(?P<key_id>[0-9a-f]{8}):(?P<mac>[0-9a-f]{64})")


@dataclass(frozen=True)
class SigningKeys:
    """The keys of one home; the first one signs.

    Attributes:
        texts: as given; secret.
    """

    texts: tuple[str, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str | None, where: str) -> SigningKeys | None:
        """The keys of a connection's field or a variable; None for an empty one.

        Args:
            where: its name, for the error.

        Raises:
            InvalidRequestError: a key is too short.
        """
        texts = tuple(dict.fromkeys(filter(None, _SEPARATORS.split(text or ""))))
        if not texts:
            return None
        shortest = min(map(len, texts))
        if shortest < MIN_KEY_CHARACTERS:
            raise InvalidRequestError(
                "a signing key is too short",
                where=where,
                characters=shortest,
                least=MIN_KEY_CHARACTERS,
                next_step="Make one with `openssl rand -hex 32`.",
            )
        return cls(texts)

    @property
    def key_id(self) -> str:
        """Names the key that signs; reveals nothing of it."""
        return _id_of(self.texts[0])

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Of all keys that verify."""
        return tuple(map(_id_of, self.texts))

    def is_in(self, text: str) -> bool:
        """Whether a text holds one of the keys."""
        return any(one in text for one in self.texts)

    def signed(self, key: str, plain: Mapping[str, object]) -> dict[str, object]:
        """A record as plain JSON with its signature, to be written under this key of the home."""
        return {**plain, SIGNATURE: f"{self.key_id}:{_mac(self.texts[0], key, plain)}"}

    def check(self, key: str, plain: Mapping[str, object]) -> str:
        """Check the signature of a record that was read under this key. Returns the id of the key that signed it.

        Raises:
            SignatureError: it has none, or not that of one of the keys.
        """
        said = plain.get(SIGNATURE)
        match = _FORM.fullmatch(said) if isinstance(said, str) else None
        if match is None:
            raise refused(key, plain, "it has no signature")
        text = next((one for one in self.texts if _id_of(one) == match["key_id"]), None)
        if text is None:
            raise refused(
                key, plain, "it was signed with a key that is not accepted", signed_with=match["key_id"],
                accepted=", ".join(self.key_ids),
            )  # fmt: skip
        try:
            mac = _mac(text, key, plain)
        except RecursionError:
            raise refused(key, plain, "it is nested too deep") from None
        if not hmac.compare_digest(mac, match["mac"]):
            raise refused(key, plain, "its signature does not fit: it was altered, or copied from another key")
        return match["key_id"]


def own_signing_keys(environ: Mapping[str, str]) -> SigningKeys | None:
    """The keys in the environment of a controller; raises as ``SigningKeys.parse``."""
    return SigningKeys.parse(environ.get(SIGNING_KEY_VARIABLE), SIGNING_KEY_VARIABLE)


def without_signing_key(environ: Mapping[str, str]) -> dict[str, str]:
    """What a driver may inherit of a controller's environment."""
    return {name: value for name, value in environ.items() if name != SIGNING_KEY_VARIABLE}


def is_signed(plain: Mapping[str, object]) -> bool:
    """Whether a record has a signature, be it valid or not."""
    return isinstance(plain.get(SIGNATURE), str)


def refused(key: str, plain: Mapping[str, object], reason: str, **facts: str) -> SignatureError:
    """The error for a record that is not believed."""
    return SignatureError(
        "this record is not signed by a controller of this home, and nothing is done that it asks for",
        key=key,
        kind=str(plain.get("kind"))[:60],
        reason=reason,
        **facts,
        next_step="Find out who wrote it. `streamstate home sign` lists all such records, and signs them if you ask for"
        " it.",
    )


def _id_of(text: str) -> str:
    return hmac.new(text.encode(), _PURPOSE_OF_ID, hashlib.sha256).hexdigest()[:8]


def _mac(text: str, key: str, plain: Mapping[str, object]) -> str:
    content = {name: value for name, value in plain.items() if name != SIGNATURE}
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    signed = b"".join((_PURPOSE, key.encode(), b"\0", canonical.encode(errors="replace")))
    return hmac.new(text.encode(), signed, hashlib.sha256).hexdigest()


# The keys under which controllers alone write, as patterns: what is signed, and what a bucket lets no driver write.
#
# A ``*`` means one part of a key. ``tests/unit/protocol/test_signed_keys.py`` holds them to ``layout``.

_RUNS = ("deployments", "scratch", "upgrades")
BY_CONTROLLERS: tuple[tuple[str, str], ...] = (
    ("HomeRecord", "home.json"),
    ("StreamRegister", "*/stream.json"),
    ("AlertRegister", "*/alerts.json"),
    ("Adoption", "*/adoption.json"),
    ("SnapshotPlace", "*/places/*.json"),
    ("RequestRecord", "*/idempotency/*.json"),
    *(("DeploymentSpec", f"*/{room}/*/spec.json") for room in _RUNS),
    *(("LaunchRecord", f"*/{room}/*/launches/*.json") for room in ("deployments", "scratch")),
    ("ScratchRun", "*/scratch/*/run.json"),
    ("Handover", "*/scratch/*/handover.json"),
    ("Upgrade", "*/upgrades/*/upgrade.json"),
    ("UpgradeStep", "*/upgrades/*/steps/*.json"),
    ("UpgradeLease", "*/upgrades/*/lease.json"),
    ("Approval", "*/upgrades/*/approval.json"),
    ("Cancellation", "*/upgrades/*/cancellation.json"),
)
"""The kind of each record that controllers alone write, and where it is."""
BY_DRIVERS: tuple[tuple[str, str], ...] = tuple(
    ("FoundModule", f"*/{room}/*/modules/*.json") for room in ("deployments", "scratch")
)
"""What a driver writes, and a controller signs once it or a person has seen the file."""


def signed_kind(key: str) -> str | None:
    """The kind of the signed record that is under this key; None for any other key."""
    return next((kind for kind, pattern in _PATTERNS if pattern.fullmatch(key)), None)


def driver_may_write(key: str) -> bool:
    """Whether a driver of the key's stream ever writes, replaces or deletes this key."""
    return not any(pattern.fullmatch(key) for kind, pattern in _PATTERNS if kind != "FoundModule")


def denied_to_drivers(stream_id: str) -> list[str]:
    """The keys of a stream that its drivers may read and not write, as patterns of a store's rights."""
    return [pattern.replace("*", stream_id, 1) for _, pattern in BY_CONTROLLERS if pattern.startswith("*/")]


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(map(re.escape, pattern.split("*"))))


_PATTERNS = tuple((kind, _compiled(pattern)) for kind, pattern in (*BY_CONTROLLERS, *BY_DRIVERS))
