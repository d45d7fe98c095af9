"""Signatures: what they cover, who can make them, and the rotation of keys."""

from __future__ import annotations

import dataclasses
import json

import pytest

from airflow_streamstate.errors import InvalidRequestError, SignatureError
from airflow_streamstate.protocol.codec import _KINDS, NEWEST_PROTOCOL, Message, encoded, object_in, to_json
from airflow_streamstate.protocol.signing import SIGNATURE, SigningKeys, own_signing_keys, without_signing_key
from support.examples import EXAMPLES

KEY, OTHER = "orders/stream.json", "billing/stream.json"
OLD, NEW, FOREIGN = "o" * 32, "n" * 32, "f" * 40
PLAIN = {"kind": "StreamRegister", "protocol": NEWEST_PROTOCOL, "attempt": 3, "facts": {"b": 1.5, "a": None}}


def keys(*texts: str) -> SigningKeys:
    found = SigningKeys.parse(" ".join(texts), "here")
    assert found is not None
    return found


def test_a_signature_survives_the_journey_through_a_store() -> None:
    """Other whitespace, order of keys or way of escaping is no alteration."""
    signed = keys(OLD).signed(KEY, {**PLAIN, "reason": "Größe \ud800"})
    back = object_in(encoded(signed), key=KEY)
    shuffled = json.loads(json.dumps(dict(reversed(back.items())), ensure_ascii=True, indent=7))
    assert keys(OLD).check(KEY, back) == keys(OLD).check(KEY, shuffled) == keys(OLD).key_id


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_every_field_is_covered(name: str) -> None:
    """Also the kind and the protocol: one record cannot pass for another kind."""
    signed = keys(OLD).signed(KEY, PLAIN)
    with pytest.raises(SignatureError, match="altered, or copied"):
        keys(OLD).check(KEY, {**signed, name: "forged"})
    with pytest.raises(SignatureError, match="altered, or copied"):
        keys(OLD).check(KEY, {one: value for one, value in signed.items() if one != name})
    with pytest.raises(SignatureError, match="altered, or copied"):
        keys(OLD).check(KEY, {**signed, "more": 1})


def test_a_valid_record_at_another_key_is_refused() -> None:
    """A record of one stream, deployment or attempt proves nothing about a different one."""
    signed = keys(OLD).signed(KEY, PLAIN)
    with pytest.raises(SignatureError, match="copied from another key"):
        keys(OLD).check(OTHER, signed)


@pytest.mark.parametrize("said", [None, "", "nothing", 5, ["x"], f"{'0' * 8}:{'0' * 63}"])
def test_what_is_no_signature_is_none(said: object) -> None:
    """Whatever is in its place."""
    with pytest.raises(SignatureError, match="it has no signature"):
        keys(OLD).check(KEY, {**PLAIN, SIGNATURE: said})


def test_a_record_that_is_nested_too_deep_is_not_signed() -> None:
    """It can be read at one depth of calls, and not be written at another."""
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(SignatureError, match="nested too deep"):
        keys(OLD).check(KEY, {**keys(OLD).signed(KEY, PLAIN), "more": nested})


def test_a_rotation_accepts_both_keys_and_signs_with_the_first() -> None:
    """Controllers may change their keys one after the other; after the old one is gone, its records are refused."""
    signed = keys(OLD).signed(KEY, PLAIN)
    both = keys(NEW, OLD)
    assert both.check(KEY, signed) == keys(OLD).key_id
    assert both.check(KEY, both.signed(KEY, signed)) == keys(NEW).key_id
    with pytest.raises(SignatureError, match="a key that is not accepted") as raised:
        keys(NEW).check(KEY, signed)
    assert f"signed_with={keys(OLD).key_id} accepted={keys(NEW).key_id}" in str(raised.value)


def test_an_error_and_a_repr_show_no_key() -> None:
    """They are logged."""
    with pytest.raises(SignatureError) as raised:
        keys(NEW).check(KEY, keys(FOREIGN).signed(KEY, PLAIN))
    assert not any(secret in f"{raised.value} {keys(NEW, OLD)!r}" for secret in (OLD, NEW, FOREIGN))


def test_keys_are_long_and_may_be_separated_by_anything_usual() -> None:
    """A field of a connection is one line; a variable may come from a file of lines."""
    assert keys(f"{NEW},{OLD}", f"\n{NEW}").texts == (NEW, OLD)
    assert own_signing_keys({"STREAMSTATE_SIGNING_KEY": f" {NEW}\n"}) == keys(NEW)
    assert own_signing_keys({}) is None
    with pytest.raises(InvalidRequestError, match="STREAMSTATE_SIGNING_KEY"):
        own_signing_keys({"STREAMSTATE_SIGNING_KEY": "short"})


def test_no_signed_kind_has_a_digest_or_a_field_of_that_name() -> None:
    """The digest would not know the signature; a field would be overwritten by it."""
    for kind in _KINDS.values():
        if kind.is_signed:
            assert not kind.is_digested
            assert SIGNATURE not in {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]


@pytest.mark.parametrize("example", [one for one in EXAMPLES if one.is_signed], ids=lambda one: one.kind)
def test_every_signed_kind_is_read_with_its_signature(example: Message) -> None:
    """A driver reads it without a key."""
    signed = keys(OLD).signed(KEY, to_json(example))
    assert keys(OLD).check(KEY, object_in(encoded(signed), key=KEY)) == keys(OLD).key_id


def test_no_driver_inherits_the_keys() -> None:
    """Who can sign can have a controller run anything; also where a version's own environment names the variable."""
    environ = {"STREAMSTATE_SIGNING_KEY": OLD, "PATH": "/bin"}
    assert without_signing_key(environ) == {"PATH": "/bin"}
