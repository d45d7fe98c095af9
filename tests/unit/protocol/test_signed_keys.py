"""The patterns of the keys under which controllers alone write, against every key of the layout."""

from __future__ import annotations

import inspect

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import scratch_id_for, upgrade_id_for
from airflow_streamstate.protocol.signing import BY_CONTROLLERS, BY_DRIVERS, driver_may_write, signed_kind
from support.examples import EXAMPLES

RUNS = {
    "deployment_id": "d-0001",
    "rehearsal_id": scratch_id_for("r", 1),
    "run_id": scratch_id_for("r", 1),
    "upgrade_id": upgrade_id_for("r"),
}
VALUES = {
    "stream_id": "orders", "request_id": "r-1", "sha256": "ab" * 32, "name": "job.py", "attempt": 1, "number": 7,
    "query_name": "counts per minute", "lease_id": "l-1", "launch_key": "d-0001-a1", "snapshot_id": "d-0001-s-1",
    "period": "20260301T1000", "mark": "0123456789ab", "uri": "s3://b/x", "take": 1, "place": "d-0001-s-1/data",
    "folder_name": "x", "key": "x", **RUNS,
}  # fmt: skip
SIGNED = {
    "home_key", "register_key", "alerts_key", "adoption_key", "idempotency_key", "spec_key", "launch_record_key",
    "scratch_run_key", "handover_key", "upgrade_key", "upgrade_step_key", "upgrade_lease_key", "approval_key",
    "cancellation_key", "found_module_key", "claimed_place_key",
}  # fmt: skip


def keys_of_layout(stream_id: str = "orders") -> dict[str, str]:
    """One key of each function of the layout that gives the key of an object."""
    found, values = {}, {**VALUES, "stream_id": stream_id}
    for name, function in inspect.getmembers(layout, inspect.isfunction):
        if function.__module__ == layout.__name__ and name.endswith("_key") and name != "stream_of_key":
            found[name] = function(*(values[each] for each in inspect.signature(function).parameters))
    return found


def test_every_signed_kind_has_a_pattern_and_every_pattern_a_signed_kind() -> None:
    """A kind that is signed and not in the table would be in no policy, and in no `home sign`."""
    assert {kind for kind, _ in (*BY_CONTROLLERS, *BY_DRIVERS)} == {one.kind for one in EXAMPLES if one.is_signed}


@pytest.mark.parametrize(("name", "key"), keys_of_layout().items(), ids=lambda one: one)
def test_each_key_of_the_layout_is_signed_or_a_drivers(name: str, key: str) -> None:
    """No key of a driver's object fits a pattern, and each key of a signed one does."""
    assert (signed_kind(key) is not None) == (name in SIGNED), key
    assert driver_may_write(key) == (name not in SIGNED or name == "found_module_key"), key


@pytest.mark.parametrize("run", RUNS.values())
def test_the_keys_of_scratch_runs_and_upgrades_are_covered(run: str) -> None:
    """They have the keys of a deployment in separate folders."""
    assert signed_kind(layout.spec_key("orders", run)) == "DeploymentSpec"
    if run.startswith(("d-", "r-")):
        assert signed_kind(layout.launch_record_key("orders", run, "k")) == "LaunchRecord"


def test_files_in_a_launch_folder_or_a_checkpoint_are_no_records() -> None:
    """A star is one part of a key: what is deeper is a driver's."""
    assert driver_may_write(f"{layout.launch_folder('orders', 'd-0001', 'k')}/handle.json")
    assert driver_may_write(f"{layout.checkpoint_folder('orders', 'd-0001', 'q')}/spec.json")
