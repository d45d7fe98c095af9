"""Records that only controllers write: signed at each write, and asked for the signature at each read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from airflow_streamstate.control.presence import HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.errors import MalformedMessageError, SignatureError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import encoded, to_bytes, to_json
from airflow_streamstate.protocol.ids import upgrade_id_for
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.protocol.records import DeploymentSpec, StreamRegister
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.protocol.upgrades import UpgradeLease
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.store.memory import MemoryStore
from support.examples import EXAMPLES
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore

UPGRADE = upgrade_id_for("r")
AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
KEYS, ROTATED = SigningKeys(("a" * 32,)), SigningKeys(("b" * 32, "a" * 32))


def control(
    store: MemoryStore | FaultyStore, keys: SigningKeys | None = KEYS, stream_id: str = "orders"
) -> StreamControl:
    return StreamControl(store, stream_id, FakeClock(), keys=keys)


def spec_of(stream_id: str, deployment_id: str) -> DeploymentSpec:
    example = next(one for one in EXAMPLES if isinstance(one, DeploymentSpec))
    return replace(example, stream_id=stream_id, deployment_id=deployment_id)


def register(stream_id: str = "orders", attempt: int = 1) -> StreamRegister:
    return StreamRegister(stream_id, 1, "d-0001", attempt, "run", None, f"w-{stream_id}-{attempt}", AT, "me")


def test_a_register_keeps_its_signature_through_every_change() -> None:
    """Created, changed, and changed again by a controller that has rotated its keys."""
    home = MemoryStore()
    control(home).create_register(register())
    for number, keys in enumerate((KEYS, ROTATED, ROTATED), start=2):
        control(home, keys).update_register(lambda one, number=number: replace(one, attempt=number), by="me")
    found = control(home, ROTATED).register()
    assert found is not None
    assert found.value.attempt == 4
    with pytest.raises(SignatureError, match="a key that is not accepted"):
        control(home).register()


def test_a_write_whose_reply_was_lost_is_recognised_with_its_signature() -> None:
    """The bytes that are read back are the signed ones (Law 8)."""
    home = MemoryStore()
    control(FaultyStore(home, FaultPlan(at_write={1: Fault.REPLY_LOST}))).create_register(register())
    assert control(home).need_register().value.attempt == 1


def test_what_a_driver_forges_is_refused() -> None:
    """A driver may write in the home, and has no key: neither a new record nor a changed one is believed."""
    home = MemoryStore()
    driver = control(home, keys=None)
    driver.create_spec(spec_of("orders", "d-0002"))
    with pytest.raises(SignatureError, match="it has no signature"):
        control(home).spec("d-0002")
    control(home).create_register(register())
    key = layout.register_key("orders")
    stored = home.get(key)
    assert stored is not None
    home.put(key, json.dumps({**json.loads(stored.body), "attempt": 7}).encode())
    with pytest.raises(SignatureError, match="altered"):
        control(home).register()


def test_a_valid_record_is_worth_nothing_in_another_stream_or_deployment() -> None:
    """The key is signed, too: neither the whole record nor one with other ids passes."""
    home = MemoryStore()
    control(home).create_spec(spec_of("orders", "d-0001"))
    stored = home.get(layout.spec_key("orders", "d-0001"))
    assert stored is not None
    raw = json.loads(stored.body)
    home.put(layout.spec_key("billing", "d-0001"), json.dumps({**raw, "stream_id": "billing"}).encode())
    home.put(layout.spec_key("orders", "d-0002"), json.dumps({**raw, "deployment_id": "d-0002"}).encode())
    with pytest.raises(SignatureError):
        control(home, stream_id="billing").spec("d-0001")
    with pytest.raises(SignatureError):
        control(home).spec("d-0002")


def test_a_forged_note_of_a_place_is_refused() -> None:
    """Else the place of a different home's snapshots would pass for this home's, and be cleared by its rules."""
    home, uri = MemoryStore(), "memory://place-of-another"
    places = SnapshotPlaces(home)
    driver = control(home, keys=None)
    places.claim(driver, uri)
    with pytest.raises(SignatureError, match="it has no signature"):
        places.claim(control(home), uri)
    places = SnapshotPlaces(home)
    honest = "memory://own-place"
    places.claim(control(home), honest)
    places.claim(control(home), honest)
    assert places.need_own(driver, honest).uri == honest
    note = home.get(layout.claimed_place_key("orders", honest))
    assert note is not None
    assert "signature" in json.loads(note.body)


def test_a_driver_reads_signed_records_without_a_key() -> None:
    """It has none, and needs none."""
    home = MemoryStore()
    control(home).create_register(register())
    control(home).create_spec(spec_of("orders", "d-0001"))
    driver = control(home, keys=None)
    assert driver.need_register().value == register()
    assert driver.spec("d-0001") == spec_of("orders", "d-0001")


def test_a_controller_without_the_key_changes_no_signed_register() -> None:
    """The other controllers would refuse what it wrote; it reads on, so that `status` still answers."""
    home = MemoryStore()
    control(home).create_register(register())
    forgetful = control(home, keys=None)
    with pytest.raises(SignatureError, match="this process has no signing key"):
        forgetful.update_register(lambda one: replace(one, attempt=2), by="me")
    assert control(home).need_register().value.attempt == 1


def test_a_home_without_keys_has_no_signatures() -> None:
    """Nothing changes for it."""
    home = MemoryStore()
    control(home, keys=None).create_register(register())
    stored = home.get(layout.register_key("orders"))
    assert stored is not None
    assert stored.body == to_bytes(register())


def test_beacons_of_drivers_are_not_signed() -> None:
    """A controller with a key reads them as before."""
    home = MemoryStore()
    beat = next(one for one in EXAMPLES if isinstance(one, Heartbeat))
    control(home, keys=None).put_heartbeat(beat)
    assert control(home).heartbeat(beat.deployment_id) == beat


def lease() -> UpgradeLease:
    return UpgradeLease("orders", UPGRADE, "me", AT, "w-1", 60.0)


def test_a_forged_lease_ends_no_upgrade() -> None:
    """It counts as none: an upgrade whose caller lives is not taken for abandoned."""
    home = MemoryStore()
    control(home, keys=None).cells.put(layout.upgrade_lease_key("orders", UPGRADE), lease())
    assert UpgradeJournal(control(home)).lease(UPGRADE) is None


def test_the_record_of_the_home_is_signed() -> None:
    """By its id clusters distinguish the drivers of homes. A forged one is no home id, and no empty home either."""
    home = MemoryStore()
    HomePresence(home, FakeClock(), keys=KEYS).begin("me")
    assert HomePresence(home, FakeClock(), keys=KEYS).identity() == HomePresence(home, FakeClock()).identity()
    stored = home.get(layout.home_key())
    assert stored is not None
    home.put(layout.home_key(), json.dumps({**json.loads(stored.body), "home_id": "another"}).encode())
    with pytest.raises(SignatureError):
        HomePresence(home, FakeClock(), keys=KEYS).identity()
    assert HomePresence(home, FakeClock(), keys=KEYS).is_there()


@pytest.mark.parametrize(
    "name",
    [
        "../job.py",
        "/etc/passwd",
        "lib/../../x.py",
        "a//b.py",
        "",
        ".",
        "job\x1b[2J.py",
        "a\nb.py",
        "a\x00.py",
        "\x85.py",
    ],
)
def test_a_file_that_leaves_its_folder_is_no_file_of_a_spec(name: str) -> None:
    """It would be written there before a launch; the same for what is no digest. Without any key."""
    home, key = MemoryStore(), layout.spec_key("orders", "d-0001")
    plain = to_json(spec_of("orders", "d-0001"))
    for wrong in ({"name": name, "sha256": "ab" * 32}, {"name": "job.py", "sha256": f"../{'a' * 61}"}):
        home.put(key, encoded({**plain, "version": {**plain["version"], "application": wrong}}))
        with pytest.raises(MalformedMessageError):
            control(home, keys=None).spec("d-0001")
