"""The manifest of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_streamstate.errors import DataError, MalformedMessageError
from airflow_streamstate.protocol.codec import DIGEST, digest_of, from_bytes, from_json, to_bytes, to_json
from airflow_streamstate.protocol.manifest import SnapshotManifest
from support.examples import example


def manifest() -> SnapshotManifest:
    value = example(SnapshotManifest)
    assert isinstance(value, SnapshotManifest)
    return value


def test_files_and_bytes_are_counted() -> None:
    """Over all queries."""
    one = manifest()
    query = one.queries["counts per minute"]
    assert (one.files_count, one.size_bytes) == (2, 45 + 1031)
    two = replace(one, queries={"a": query, "b": query})
    assert (two.files_count, two.size_bytes) == (4, 2 * (45 + 1031))
    empty = replace(one, queries={})
    assert (empty.files_count, empty.size_bytes) == (0, 0)


def test_the_order_is_that_of_what_they_hold() -> None:
    """Deployment, attempt, its end behind all else of it; clocks decide only what is left."""
    early, late = manifest().taken_at, manifest().taken_at + timedelta(hours=1)

    def one(kind: str, *, token: int = 1, attempt: int = 1, at: datetime = early) -> SnapshotManifest:
        changes = {"snapshot_kind": kind, "fencing_token": token, "attempt": attempt, "taken_at": at}
        return replace(manifest(), **changes)

    in_order = [
        one("pre-drain"),
        one("live", at=late),
        one("stopped"),
        one("live", attempt=2),
        one("drained", attempt=2),
        one("live", token=2),
    ]
    mixed = in_order[::-1]
    assert sorted(mixed, key=lambda each: each.order) == in_order


def digested(raw: Mapping[str, object]) -> dict[str, Any]:
    """A changed manifest as it would have been written."""
    return {**raw, DIGEST: digest_of(raw)}


def test_a_manifest_that_was_altered_is_refused() -> None:
    """Whatever was changed in it, unknown fields and the digest itself included (Law 7)."""
    raw = to_json(manifest())
    assert from_json(dict(reversed(raw.items())), key="k", expected=SnapshotManifest) == manifest()
    for name in raw:
        for changed in ({**raw, name: "x"}, {key: value for key, value in raw.items() if key != name}):
            with pytest.raises(DataError):
                from_json(changed, key="k", expected=SnapshotManifest)
    with pytest.raises(MalformedMessageError, match="it was altered"):
        from_json({**raw, "later": 1}, key="k", expected=SnapshotManifest)


def test_a_manifest_of_any_text_has_the_digest_that_is_read() -> None:
    """Half a surrogate pair is written as something else, and the digest is that of what is written."""
    one = replace(manifest(), spark_version="4.2.0 \ud83d é")
    assert from_bytes(to_bytes(one), key="k", expected=SnapshotManifest).spark_version == "4.2.0 ? é"


def test_an_unknown_kind_is_refused() -> None:
    """The kind of a snapshot decides how a deployment starts, so it is never guessed (Laws 5 and 7)."""
    with pytest.raises(MalformedMessageError, match="snapshot_kind"):
        from_json(digested({**to_json(manifest()), "snapshot_kind": "backup"}), key="k", expected=SnapshotManifest)


def test_a_manifest_that_does_not_say_drained_means_with_state() -> None:
    """The default is the one that loses nothing: the successor restores, and does not seed (Law 16)."""
    query = replace(manifest().queries["counts per minute"], drained=True)
    raw = to_json(replace(manifest(), queries={"q": query}))
    del raw["queries"]["q"]["drained"]  # type: ignore[attr-defined]
    assert from_json(digested(raw), key="k", expected=SnapshotManifest).queries["q"].drained is False
