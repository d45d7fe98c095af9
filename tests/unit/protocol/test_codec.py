"""Messages to JSON and back (Law 7)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.errors import DataError, MalformedMessageError, UnsupportedVersionError
from airflow_streamstate.protocol.codec import (
    DIGEST,
    NEWEST_PROTOCOL,
    OLDEST_PROTOCOL,
    Message,
    digest_of,
    format_time,
    from_bytes,
    from_json,
    message,
    object_in,
    parse_time,
    to_bytes,
    to_json,
)
from airflow_streamstate.protocol.commands import ALL_COMMANDS, Command, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Event, Noted
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat
from airflow_streamstate.protocol.records import DeploymentSpec
from support.examples import example
from support.messages import KINDS, json_values, messages_of, moments

pytestmark = pytest.mark.fast

AT = datetime(2026, 3, 1, 10, 0, tzinfo=timezone.utc)
DRAIN = DrainNotification("c-1", "orders", "d-0001", AT, None, "me", "an upgrade", rehearse=True)
any_message = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: messages_of(KINDS[kind]))


def drain_with(**fields: object) -> bytes:
    return json.dumps({**to_json(DRAIN), **fields}).encode()


def read_drain(body: bytes) -> DrainNotification:
    return from_bytes(body, key="some/key.json", expected=DrainNotification)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_message_survives_the_trip(kind: str) -> None:
    """What is written is read back equal, and equal messages are equal bytes, for every kind there is."""

    @settings(deadline=None, max_examples=25)
    @given(messages_of(KINDS[kind]))
    def check(value: Message) -> None:
        body = to_bytes(value)
        again = from_bytes(body, key="k", expected=KINDS[kind])
        assert again == value
        assert to_bytes(again) == body

    check()


@settings(deadline=None)
@given(any_message, json_values)
def test_unknown_fields_are_ignored(value: Message, extra: object) -> None:
    """A newer writer may write more than we understand (Law 7)."""
    raw = {**to_json(value), "a_field_of_tomorrow": extra}
    if raw.pop(DIGEST, None) is not None:
        raw[DIGEST] = digest_of(raw)  # of all that the newer writer wrote
    assert from_bytes(json.dumps(raw).encode(), key="k", expected=type(value)) == value


def test_unknown_fields_inside_are_ignored() -> None:
    """Also in the objects inside a message (Law 7)."""
    beat = Heartbeat("orders", "d-0001", 1, AT, {"counts": QueryBeat(3, AT, is_active=True)})
    raw: Any = to_json(beat)
    raw["queries"]["counts"]["more"] = [1]
    assert from_json(raw, key="k", expected=Heartbeat) == beat


def test_missing_fields_take_their_defaults() -> None:
    """An older writer may write less, where we gave the field a default (Law 7)."""
    raw = to_json(DRAIN)
    del raw["mode"]
    assert from_json(raw, key="k", expected=DrainNotification) == DRAIN
    del raw["reason"]
    with pytest.raises(MalformedMessageError, match="field reason is missing"):
        from_json(raw, key="k", expected=DrainNotification)


@pytest.mark.parametrize("protocol", [NEWEST_PROTOCOL + 1, OLDEST_PROTOCOL - 1, 0, -1, 10**30])
def test_another_protocol_version_is_refused(protocol: int) -> None:
    """The error names the version found and those known here (Law 7)."""
    with pytest.raises(UnsupportedVersionError) as caught:
        read_drain(drain_with(protocol=protocol))
    assert caught.value.context["protocol"] == protocol
    assert caught.value.context["own_protocols"] == f"{OLDEST_PROTOCOL}..{NEWEST_PROTOCOL}"


def test_the_version_is_looked_at_before_anything_else() -> None:
    """A newer message may look different in every other way, and is reported as newer, not as damaged."""
    with pytest.raises(UnsupportedVersionError):
        read_drain(b'{"protocol": 99, "kind": "SomethingNew"}')


@pytest.mark.parametrize("protocol", [None, "1", 1.0, True, [1]])
def test_no_protocol_version_is_malformed(protocol: object) -> None:
    """Without a version nothing of a message can be trusted."""
    with pytest.raises(MalformedMessageError, match="no protocol version"):
        read_drain(drain_with(protocol=protocol))


@pytest.mark.parametrize("kind", ["Drain", "drainnotification", "", None, 3, ["DrainNotification"], {}, "X" * 9000])
def test_unknown_kinds_are_refused(kind: object) -> None:
    """A command that is not understood is never obeyed as another one (Law 7)."""
    with pytest.raises(MalformedMessageError, match="where DrainNotification belongs"):
        read_drain(drain_with(kind=kind))


def test_a_known_kind_in_the_wrong_place_is_refused() -> None:
    """A command among the events is no event."""
    with pytest.raises(MalformedMessageError, match="belongs"):
        from_bytes(to_bytes(DRAIN), key="k", expected=Event)
    stop = StopRequest("c-2", "orders", "d-0001", AT, None, "me", "", attempt=1)
    with pytest.raises(MalformedMessageError):
        read_drain(to_bytes(stop))


def test_one_of_several_kinds_can_be_expected() -> None:
    """By a base class or by name."""
    assert from_bytes(to_bytes(DRAIN), key="k", expected=Command) == DRAIN
    assert from_bytes(to_bytes(DRAIN), key="k", expected=ALL_COMMANDS) == DRAIN


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"command_id": 7}, "command_id is not a str"),
        ({"command_id": None}, "command_id is not a str"),
        ({"mode": "softly"}, "mode is 'softly', not one of"),
        ({"mode": ["default"]}, "mode is"),
        ({"requested_at": "yesterday"}, "requested_at is not a time"),
        ({"requested_at": "2026-03-01T10:00:00"}, "requested_at is not a time"),
        ({"requested_at": 1772359200}, "requested_at is not a time"),
        ({"requested_at": "0001-01-01T00:00:00+14:00"}, "requested_at is not a time"),
        ({"deadline_at": False}, "deadline_at is not a time"),
        ({"reason": "\ud800"}, "not JSON"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields: dict[str, object], says: str) -> None:
    """The error names the field, and the key of the object is in its context."""
    with pytest.raises(MalformedMessageError) as caught:
        read_drain(drain_with(**fields))
    assert says in str(caught.value.context["reason"])
    assert caught.value.context["key"] == "some/key.json"


@pytest.mark.parametrize("attempt", [True, 1.0, "1", None, 2**63, -(2**63), 10**400])
def test_a_number_is_a_whole_number_of_64_bits(attempt: object) -> None:
    """Neither truth values nor texts nor endless digits pass as numbers."""
    stop = StopRequest("c-2", "orders", "d-0001", AT, None, "me", "", attempt=1)
    body = json.dumps({**to_json(stop), "attempt": attempt}).encode()
    with pytest.raises(MalformedMessageError):
        from_bytes(body, key="k", expected=StopRequest)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b"3", b'"text"', b"{", b'{"kind":', b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{}",
        b'{"protocol": NaN}', b'{"protocol": 3, "kind": Infinity}', b'{"a": 1e999}', b"[" * 100_000,
        b'{"a":' * 100_000, b'{"protocol": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_malformed(body: bytes) -> None:
    """Empty, cut short, not UTF-8, not an object, nested without end: one error class (Law 7)."""
    with pytest.raises(MalformedMessageError):
        read_drain(body)


@pytest.mark.parametrize("value", [b"[],", b'{"":0},', b"0,", b'"",', b"[[]],"])
def test_a_large_object_of_tiny_values_is_not_decoded(value: bytes) -> None:
    """64 MiB of them would take a reader two gigabytes and a quarter of a minute. What it has is counted."""
    count = (Message.most_bytes // len(value)) + 1
    body = b'{"kind": "SnapshotManifest", "protocol": 3, "x": [' + value * count + b"[]]}"
    with pytest.raises(MalformedMessageError) as refused:
        object_in(body, key="k")
    assert f"values in {len(body)} bytes" in str(refused.value.context["reason"])


def test_a_large_list_of_files_is_read() -> None:
    """Of files with the shortest names that there are."""
    manifest = example(SnapshotManifest)
    (name, query), *_ = manifest.queries.items()
    files = tuple(FileEntry(f"{number:x}", 1) for number in range(40_000))
    large = replace(manifest, queries={name: replace(query, files=files)})
    body = to_bytes(large)
    assert len(body) > Message.most_bytes
    assert from_bytes(body, key="k", expected=SnapshotManifest) == large


def test_settings_out_of_their_range_are_malformed_there() -> None:
    """A record with impossible settings is damaged data, not a wrong request of its reader."""
    raw: Any = to_json(example(DeploymentSpec))
    raw["version"]["settings"]["heartbeat_seconds"] = 0
    with pytest.raises(MalformedMessageError, match="cannot have this value"):
        from_json(raw, key="k", expected=DeploymentSpec)


@settings(deadline=None, max_examples=300)
@given(any_message, st.data())
def test_damaged_json_is_never_anything_but_a_data_error(value: Message, data: st.DataObject) -> None:
    """Cut short, with a byte altered, removed or put in: a message, or a DataError (Law 7)."""
    body = bytearray(to_bytes(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        how = data.draw(st.sampled_from(["cut", "alter", "drop", "insert"]))
        if how == "cut":
            del body[at:]
        elif how == "drop":
            del body[at : at + 1]
        elif how == "insert" or not body:
            body[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            body[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        again = from_bytes(bytes(body), key="k", expected=type(value))
        to_bytes(again)  # what is read can be written again, or an event that quotes it would kill the agent


@settings(deadline=None, max_examples=300)
@given(any_message, json_values, st.data())
def test_any_value_in_any_field_is_never_anything_but_a_data_error(
    value: Message, other: object, data: st.DataObject
) -> None:
    """A field may hold whatever JSON can express: a message, or a DataError (Law 7)."""
    raw = to_json(value)
    raw[data.draw(st.sampled_from(sorted(raw)))] = other
    with contextlib.suppress(DataError):
        from_json(raw, key="k", expected=type(value))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_never_anything_but_a_data_error(body: bytes) -> None:
    """Whatever is there (Law 7)."""
    with contextlib.suppress(DataError):
        from_bytes(body, key="k", expected=Message)


def test_text_that_utf8_cannot_hold_is_still_written() -> None:
    """Half a surrogate pair, out of an argument or a log, does not keep an event from being written."""
    noted = Noted("orders", "d-0001", 1, AT, "w", text="caf\udce9 \ud800", facts={"a": "\udfff"})
    again = from_bytes(to_bytes(noted), key="k", expected=Noted)
    assert (again.text, again.facts) == ("caf? ?", {"a": "?"})


def test_numbers_that_json_cannot_say_become_null() -> None:
    """Spark's rates over no time at all are not numbers; the heartbeat is written without them."""
    beat = QueryBeat(1, AT, is_active=True, input_rows_per_second=math.nan, processed_rows_per_second=math.inf)
    again = from_bytes(to_bytes(Heartbeat("o", "d-0001", 1, AT, {"q": beat})), key="k", expected=Heartbeat)
    assert (again.queries["q"].input_rows_per_second, again.queries["q"].processed_rows_per_second) == (None, None)


def test_wire_form_is_plain_and_sorted() -> None:
    """Names are the Python names, times have milliseconds and a Z, keys are sorted."""
    text = to_bytes(DRAIN).decode()
    raw = json.loads(text)
    assert list(raw) == sorted(raw)
    assert (raw["kind"], raw["protocol"], raw["requested_at"]) == ("DrainNotification", 3, "2026-03-01T10:00:00.000Z")
    assert text.endswith("}\n")


def test_another_protocol_can_be_written() -> None:
    """The controller writes in the highest version that both sides know."""
    assert to_json(DRAIN, 7)["protocol"] == 7


@given(moments)
def test_times_survive_the_trip(moment: datetime) -> None:
    """To the millisecond, always in UTC."""
    assert parse_time(format_time(moment)) == moment
    assert format_time(moment).endswith("Z")


def test_times_of_other_zones_are_the_same_moment() -> None:
    """An offset is understood, and written as UTC."""
    assert parse_time("2026-03-01T12:00:00+02:00") == AT
    assert format_time(AT.astimezone(timezone(timedelta(hours=-5)))) == "2026-03-01T10:00:00.000Z"


def test_a_time_without_zone_is_refused() -> None:
    """In both directions: no zone is guessed."""
    with pytest.raises(ValueError, match="no time zone"):
        parse_time("2026-03-01T10:00:00")
    with pytest.raises(ValueError, match="no time zone"):
        format_time(AT.replace(tzinfo=None))


def test_kinds_are_registered_once() -> None:
    """Two classes of one kind would be read as each other."""
    with pytest.raises(TypeError, match="two messages of kind DrainNotification"):
        message(dataclasses.make_dataclass("DrainNotification", [], bases=(Message,), frozen=True))
