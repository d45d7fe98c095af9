"""Stores on GCS and Azure Blob under heavy faults: their answer about a write is true, and in time."""

from __future__ import annotations

import http.client
import random
from collections.abc import Iterator

import pytest

from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.store.azure import azure_store
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.gcs import gcs_store
from airflow_streamstate.store.options import AZURE_SAS_VARIABLES, AzureOptions, GCSOptions
from airflow_streamstate.store.server import TRY_FOR_SECONDS, ServerStore
from airflow_streamstate.store.transfer import put_pieces
from support import azurite
from support.fake_clock import FakeClock
from support.object_stores import PART_BYTES, object_store
from support.s3_proxy import Strike, StrikingProxy, Weather, striking_proxy
from support.store_model import Model

pytestmark = pytest.mark.objects
STEPS = 150
SERVERS = ("gcs", "azure")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(request: pytest.FixtureRequest, server: str) -> str:
    return str(request.getfixturevalue(f"{server}_url"))


@pytest.fixture
def proxy(address: str) -> Iterator[StrikingProxy]:
    with striking_proxy(address) as running:
        yield running


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def direct(server: str, address: str, s3_prefix: str) -> Store:
    """The same place without the proxy: what is really there."""
    return object_store(server, address, s3_prefix)


@pytest.fixture
def struck(server: str, proxy: StrikingProxy, s3_prefix: str, clock: FakeClock) -> Store:
    return object_store(server, proxy.endpoint_url, s3_prefix, clock=clock)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_said_of_a_write_is_true(struck: Store, direct: Store, proxy: StrikingProxy, seed: int) -> None:
    """Half of all requests goes wrong: done is done, refused is refused, unknown is one of the two. (Law 8)"""
    proxy.weather = Weather(0.5, seed)
    model, chance = Model(struck), random.Random(seed)
    for _ in range(STEPS):
        key = model.step(chance)
        stored = direct.get(key)
        assert (None if stored is None else stored.body) in model.bodies[key], key
    assert model.outcomes == {"create", "replace", "put", "delete"}
    assert sum(proxy.weather.struck.values()) > STEPS // 2


LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"the rest"


def test_parts_survive_faults(struck: Store, direct: Store, proxy: StrikingProxy) -> None:
    """With a third of all requests lost in some way, a large object is complete if so reported, else as before."""
    outcomes = set()
    for seed in range(6):
        proxy.weather = Weather(0.33, seed, mercy=True)
        direct.put("large", b"old")
        pieces = (LARGE[at : at + 999_999] for at in range(0, len(LARGE), 999_999))
        bodies = {LARGE}
        try:
            put_pieces(struck, "large", pieces, len(LARGE))
        except UnavailableError:
            bodies = {b"old"}
        except OutcomeUnknownError:
            bodies = {b"old", LARGE}
        outcomes.add(len(bodies))
        assert direct.get("large").body in bodies
    assert 1 in outcomes
    proxy.weather = None
    assert put_pieces(struck, "large", iter([LARGE]), len(LARGE)) == direct.get("large").version


def test_an_upload_that_is_denied_changes_nothing(struck: Store, direct: Store, proxy: StrikingProxy) -> None:
    """As a put that is."""
    direct.put("large", b"old")
    proxy.strikes += [Strike(method, False, 403, "AccessDenied", times=99) for method in ("PUT", "POST")]
    with pytest.raises(InvalidRequestError):
        put_pieces(struck, "large", iter([LARGE]), len(LARGE))
    assert direct.get("large").body == b"old"


def test_nothing_hangs_and_nothing_is_made_up(
    struck: Store, direct: Store, proxy: StrikingProxy, clock: FakeClock
) -> None:
    """While the server is gone each call ends within its tries, and none reports absent, done or refused. (Law 6)"""
    version = direct.put("a", b"1")
    acts = {
        "get": lambda: struck.get("a"),
        "head": lambda: struck.head("a"),
        "list": lambda: list(struck.list_objects("")),
        "folders": lambda: struck.list_folders(""),
        "create": lambda: struck.create("b", b"2"),
        "replace": lambda: struck.replace("a", b"2", version),
        "put": lambda: struck.put("a", b"2"),
        "delete": lambda: struck.delete("a", version),
        "copy": lambda: struck.copy("a", "c"),
    }
    proxy.is_out.set()
    for name, act in acts.items():
        begun = clock.monotonic_seconds()
        with pytest.raises((UnavailableError, OutcomeUnknownError)) as caught:
            act()
        is_write = name not in ("get", "head", "list", "folders")
        assert isinstance(caught.value, OutcomeUnknownError) == is_write, name
        assert clock.monotonic_seconds() - begun < TRY_FOR_SECONDS
    proxy.is_out.clear()
    assert [(info.key, info.size_bytes) for info in struck.list_objects("")] == [("a", 1)]
    assert struck.replace("a", b"2", version) == direct.get("a").version


def test_a_lost_create_is_ours(struck: Store, direct: Store, proxy: StrikingProxy) -> None:
    """It landed and the answer was lost: the next try is refused by it, and is not taken for another's. (Law 8)"""
    proxy.strikes.append(Strike("PUT", forward=True, status=500, code="InternalError"))
    version = struck.create("claims/1", b"mine")
    assert direct.get("claims/1").version == version
    assert proxy.count("PUT") == 1


def test_each_call_is_one_request(struck: Store, direct: Store, proxy: StrikingProxy) -> None:
    """What a call costs when nothing goes wrong; a copy is looked at once it was asked for."""
    version = direct.put("a", b"1")
    struck.get("a")
    for cost, act in (
        (1, lambda: struck.get("a")),
        (1, lambda: struck.head("a")),
        (1, lambda: struck.create("b", b"2")),
        (1, lambda: struck.replace("a", b"2", version)),
        (1, lambda: list(struck.list_objects(""))),
        (1, lambda: struck.list_folders("")),
        (2, lambda: struck.copy("a", "c")),
        (1, lambda: struck.delete("c")),
    ):
        proxy.forget()
        act()
        assert len(proxy.seen) == cost, proxy.requests


@pytest.mark.parametrize("server", ["gcs"], indirect=True)
def test_directory_markers_are_not_objects(address: str, direct: Store, s3_prefix: str) -> None:
    """Hadoop's connectors leave them; other empty objects stay in the list."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    for marker in ("offsets/", "empty/", ""):
        connection.request("PUT", f"/streams/{s3_prefix}/{marker}".replace("//", "/"), body=b"")
        assert connection.getresponse().read() == b""
    connection.close()
    direct.put("offsets/0", b"x")
    direct.put("nothing", b"")
    assert [info.key for info in direct.list_objects("")] == ["nothing", "offsets/0"]
    assert direct.get("offsets") is None


def test_no_bucket_is_a_mistake_and_not_an_absence(server: str, address: str) -> None:
    """Whatever is asked first, also without a body in the answer; the error states what to do."""

    def elsewhere() -> ServerStore:
        if server == "gcs":
            return gcs_store("nowhere", "", GCSOptions(endpoint_url=address))
        return azure_store("nowhere", "", azurite.options_for(address))

    for act in (
        lambda: elsewhere().get("a"),
        lambda: elsewhere().head("a"),
        lambda: elsewhere().create("a", b""),
        lambda: elsewhere().put("a", b""),
        lambda: list(elsewhere().list_objects("")),
        lambda: elsewhere().list_folders(""),
        lambda: elsewhere().delete("a"),
    ):
        with pytest.raises(InvalidRequestError, match="no such bucket or container"):
            act()


@pytest.mark.parametrize("server", ["azure"], indirect=True)
def test_a_wrong_key_is_a_mistake(address: str) -> None:
    """Reported at once, and the key is not in it."""
    options = AzureOptions(azurite.ACCOUNT, "aGlkZGVu", f"{address}/{azurite.ACCOUNT}")
    store = azure_store(azurite.CONTAINER, "", options)
    for act in (
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: store.put("a", b""),
        lambda: store.delete("a"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            act()
        assert caught.value.next_step
        assert "aGlkZGVu" not in str(caught.value)


@pytest.mark.parametrize("server", ["azure"], indirect=True)
def test_a_shared_access_signature_suffices(address: str, s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of request, the conditional delete too; the signature is in no message."""
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    signature = azurite.account_signature()
    monkeypatch.setenv(AZURE_SAS_VARIABLES[0], signature)
    options = AzureOptions(azurite.ACCOUNT, None, f"{address}/{azurite.ACCOUNT}")
    store = azure_store(azurite.CONTAINER, s3_prefix, options)
    version = store.create("a", b"1")
    store.replace("a", b"2", version)
    store.copy("a", "b")
    assert [info.key for info in store.list_objects("")] == ["a", "b"]
    assert store.head("a").size_bytes == 1
    store.delete("a", store.get("a").version)
    assert store.get("a") is None
