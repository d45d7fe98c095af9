"""The register of an adoption on the wire."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.protocol.adoptions import Adoption
from airflow_streamstate.protocol.codec import from_bytes, to_bytes
from support.examples import EXAMPLES


def test_it_survives_the_trip() -> None:
    """Also while nothing is taken."""
    [example] = [one for one in EXAMPLES if isinstance(one, Adoption)]
    for one in (example, replace(example, status="open", snapshot_id="")):
        assert from_bytes(to_bytes(one), key="adoption.json", expected=Adoption) == one
