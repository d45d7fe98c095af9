"""Ids, and query names as parts of keys."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import (
    MAX_ENCODED_CHARACTERS,
    SnapshotKind,
    attempt_of,
    check_id,
    check_stream_id,
    decode_query_name,
    deployment_id_for,
    encode_query_name,
    fencing_token_of,
    is_scratch_id,
    is_snapshot_by_command,
    is_snapshot_of,
    is_upgrade_id,
    launch_key_for,
    periodic_snapshot_id_for,
    rehearsal_id_in,
    scratch_id_for,
    snapshot_id_for,
    snapshot_number_of,
    upgrade_id_for,
    upgrade_of_rehearsal,
)
from airflow_streamstate.store.base import check_key

HOSTILE = [
    "", " ", ".", "..", "../x", "a/b", "/a", "a\\b", "A", "Orders", "ORDERS", "a" * 64, "a" * 10_000, "-a",
    "a-", "-", "a_b", "a.b", "a b", "a\n", "\na", "a\x00", "é", "\u0661", "\uff41", "a%2fb", "~", "*",
    "$HOME", "a;rm -rf", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("value", [*HOSTILE, None, 3, b"a", ["a"]], ids=ascii)
def test_a_hostile_id_is_refused(value: object) -> None:
    """Nothing that could leave its folder, collide or be misread is an id; the error shows it escaped and cut."""
    with pytest.raises(InvalidRequestError) as caught:
        check_stream_id(value)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 400
    assert text.startswith("this is not a valid stream id. stream_id=")


@pytest.mark.parametrize("value", ["a", "0", "a-b", "orders-2026", "a" * 63, "a--b", "9" * 63])
def test_a_good_id_is_returned_as_it_is(value: str) -> None:
    """1 to 63 characters of a-z, 0-9 and dashes inside."""
    assert check_id(value, "snapshot id") == value


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True))
def test_every_id_is_one_part_of_a_key(value: str) -> None:
    """Whatever passes can be put into a key of any store."""
    assert check_key(f"{check_id(value, 'id')}/stream.json").count("/") == 1


@given(st.integers(1, 10**12 - 1))
def test_a_deployment_id_carries_its_fencing_token(token: int) -> None:
    """The token can be read back from the id, and ids grow as tokens do."""
    assert fencing_token_of(deployment_id_for(token)) == token
    assert check_id(deployment_id_for(token), "deployment id")
    names = [deployment_id_for(token), deployment_id_for(token + 1)]
    assert sorted(names, key=lambda name: (len(name), name)) == names


@pytest.mark.parametrize(
    "value", ["d-1", "d-00001", "d-0001 ", "d-0001\n", "x-0001", "d--001", "d-\u0661\u0662\u0663\u0664", "", "../x"]
)
def test_one_deployment_has_one_id(value: str) -> None:
    """No second spelling of an id is taken for it."""
    with pytest.raises(InvalidRequestError, match="not a deployment id"):
        fencing_token_of(value)


def test_ids_of_snapshots_and_launches_are_made_of_what_they_are_about() -> None:
    """Trying twice makes the same id (Law 2)."""
    assert snapshot_id_for("d-0001", "pre-drain", 2) == "d-0001-pre-drain-000002"
    assert [snapshot_number_of(one) for one in ("d-0001-pre-drain-000002", "a-copy", "")] == [2, None, None]
    assert launch_key_for("d-0001", 3) == "d-0001-a0003"
    longest = deployment_id_for(10**12 - 1)
    for kind in get_args(SnapshotKind):
        assert check_id(snapshot_id_for(longest, kind, 10**9), "snapshot id")
    assert check_id(launch_key_for(longest, 10**9), "launch key")


names = st.text(min_size=1, max_size=26)


@given(names)
def test_query_names_are_encoded_reversibly(name: str) -> None:
    """Whatever the script calls its query, the name comes back from the key (1a.12)."""
    encoded = encode_query_name(name)
    assert decode_query_name(encoded) == name
    assert set(encoded) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-=")
    assert check_key(encoded) == encoded


@given(names, names)
def test_two_query_names_are_never_one_key(first: str, second: str) -> None:
    """Two queries never share a checkpoint (1a.12)."""
    assert (encode_query_name(first) == encode_query_name(second)) is (first == second)


def test_encoding_is_as_documented() -> None:
    """Plain names stay as they are; others are distinguished from them by ``=``."""
    assert encode_query_name("Query-1") == "Query-1"
    assert encode_query_name("a_b/../=é") == "a=5Fb=2F=2E=2E=2F=3D=C3=A9"


@pytest.mark.parametrize("name", ["", "x" * (MAX_ENCODED_CHARACTERS + 1), "é" * 41, "\ud800", "a" + "\udcff"])
def test_a_name_that_no_folder_can_have_is_refused(name: str) -> None:
    """Empty, too long for a file system, or no text: refused with the advice to name the query (1a.12)."""
    with pytest.raises(InvalidRequestError, match="queryName"):
        encode_query_name(name)


def test_the_longest_names_still_fit() -> None:
    """240 plain characters, or 80 bytes of others."""
    assert len(encode_query_name("x" * 240)) == len(encode_query_name("é" * 40)) == 240


@given(st.text(alphabet="ab=0123456789ABCDEFabcdef/.%\ud800", max_size=12))
def test_a_foreign_folder_is_told_from_a_query(part: str) -> None:
    """What decodes encodes back to the same part; everything else is refused, and nothing else is raised."""
    try:
        name = decode_query_name(part)
    except InvalidRequestError:
        return
    assert encode_query_name(name) == part


@pytest.mark.parametrize("part", ["", "a=2", "=", "=ZZ", "=41", "=5f", "=C3", "a b", "a/b", "lost+found", ".tmp"])
def test_parts_that_are_no_query(part: str) -> None:
    """Not percent-like enough, lower-case digits, needless escapes, half a character: refused."""
    with pytest.raises(InvalidRequestError):
        decode_query_name(part)


@given(st.integers(1, 10**9))
def test_a_launch_key_names_its_attempt(attempt: int) -> None:
    """The attempt can be read back from the key, however many there were."""
    assert attempt_of(launch_key_for("d-0001", attempt)) == attempt


@pytest.mark.parametrize("key", ["", "d-0001", "d-0001-a1", "d-0001-a0001x", "-a"])
def test_what_is_no_launch_key_is_refused(key: str) -> None:
    """Only what ``launch_key_for`` makes is one."""
    with pytest.raises(InvalidRequestError):
        attempt_of(key)


@given(st.text(max_size=63), st.integers(1, 9999))
def test_a_scratch_run_is_named_after_its_request(request_id: str, number: int) -> None:
    """The same request and number is the same run; its id and its launch key are ids (Law 2)."""
    rehearsal_id = scratch_id_for(request_id, number)
    assert rehearsal_id == scratch_id_for(request_id, number)
    assert is_scratch_id(check_id(rehearsal_id, "rehearsal id"))
    assert attempt_of(launch_key_for(rehearsal_id, 1)) == 1
    assert rehearsal_id_in(launch_key_for(rehearsal_id, 1)) == rehearsal_id
    assert rehearsal_id_in(launch_key_for("d-0001", number)) is None


@pytest.mark.parametrize(
    "value", ["d-0001", "d-0001-live-000001", "r-1", "r-0b8e3c525f0e", "r-0b8e3c525f0e-0001-x", ""]
)
def test_what_is_no_scratch_run(value: str) -> None:
    """Deployments and snapshots are never taken for one, and so keep their places."""
    assert not is_scratch_id(value)


def test_an_upgrade_is_named_after_the_request_that_asked_for_it() -> None:
    """The same request is the same upgrade (Law 2), and nothing else has such a name."""
    assert upgrade_id_for("r-1") == upgrade_id_for("r-1") != upgrade_id_for("r-2")
    assert is_upgrade_id(check_id(upgrade_id_for("r" * 63), "upgrade id"))
    others = [deployment_id_for(1), scratch_id_for("r-1", 1), f"{upgrade_id_for('r-1')}-1", "u-", "u-0b8e3c525f0G"]
    assert [known for known in others if is_upgrade_id(known)] == []


def test_a_snapshot_that_a_command_asked_for_is_told_from_a_periodic_one() -> None:
    """By its id, and of its own deployment only."""
    assert periodic_snapshot_id_for("d-0001", 2, 3) == "d-0001-live-a0002-000003"
    check_id(periodic_snapshot_id_for(deployment_id_for(10**11), 10**6, 10**9), "snapshot id")
    assert is_snapshot_by_command(snapshot_id_for("d-0001", "live", 7), "d-0001")
    for other in ("d-0001-live-a0002-000003", "d-0001-stopped-000001", "d-0011-live-000001", "d-0001-live-"):
        assert not is_snapshot_by_command(other, "d-0001")


def test_a_snapshot_is_of_one_deployment() -> None:
    """A deployment whose id starts alike has none of them."""
    assert is_snapshot_of(snapshot_id_for("d-0001", "stopped", 1), "d-0001")
    assert not is_snapshot_of(snapshot_id_for("d-00011", "stopped", 1), "d-0001")


@pytest.mark.parametrize(
    ("request_id", "upgrade_id"),
    [
        (f"{upgrade_id_for('r-1')}-plan", upgrade_id_for("r-1")),
        (f"{upgrade_id_for('r-1')}-back-undo", upgrade_id_for("r-1")),
        (upgrade_id_for("r-1"), None),
        ("u-plan", None),
        ("a person's own", None),
    ],
)
def test_the_rehearsals_of_an_upgrade_are_known_by_their_requests(request_id: str, upgrade_id: str | None) -> None:
    """Its driver looks whether that upgrade has ended."""
    assert upgrade_of_rehearsal(request_id) == upgrade_id
