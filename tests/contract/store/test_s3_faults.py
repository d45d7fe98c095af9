"""ServerStore under heavy faults: its answer about a write is true, and in time."""

from __future__ import annotations

import random

import pytest

from airflow_streamstate.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store.base import Link
from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.server import TRIES, TRY_FOR_SECONDS, ServerStore
from airflow_streamstate.store.transfer import delete_many, link_many
from support.fake_clock import FakeClock
from support.s3_server import BUCKET, Strike, StrikingProxy, Weather, options_for
from support.store_model import Model

STEPS = 150


@pytest.fixture
def direct(s3_endpoint_url: str, s3_prefix: str) -> ServerStore:
    """The same place without the proxy: what is really there."""
    return s3_store(BUCKET, s3_prefix, options_for(s3_endpoint_url))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def struck(s3_proxy: StrikingProxy, s3_prefix: str, clock: FakeClock) -> ServerStore:
    return s3_store(BUCKET, s3_prefix, options_for(s3_proxy.endpoint_url), clock=clock)


class TestStorm:
    @pytest.mark.parametrize("seed", range(2))
    def test_whatever_is_said_of_a_write_is_true(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, seed: int
    ) -> None:
        """Half of all requests goes wrong: done is done, refused is refused, unknown is one of the two. (Law 8)"""
        s3_proxy.weather = Weather(0.5, seed)
        model, chance = Model(struck), random.Random(seed)
        for _ in range(STEPS):
            key = model.step(chance)
            stored = direct.get(key)
            assert (None if stored is None else stored.body) in model.bodies[key], key
        assert model.outcomes == {"create", "replace", "put", "delete"}
        assert sum(s3_proxy.weather.struck.values()) > STEPS // 2

    def test_many_copies_are_all_made(self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy) -> None:
        """With a third of all requests lost, 200 copies are made, and few more requests than the lost ones."""
        direct.put("a", b"x")
        s3_proxy.weather = Weather(0.33, seed=1)
        checksums = link_many(struck, [Link("a", f"b/{number:03}") for number in range(200)])
        assert len(set(checksums)) == 1
        s3_proxy.weather = None
        assert len(list(direct.list_objects("b/"))) == 200
        assert s3_proxy.operations["CopyObject"] < 200 * 1.33 * 1.33
        delete_many(struck, [f"b/{number:03}" for number in range(200)])
        assert list(direct.list_objects("b/")) == []


class TestOutage:
    def test_nothing_hangs_and_nothing_is_made_up(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, clock: FakeClock
    ) -> None:
        """While the server is gone each call ends within its tries; none reports absent, done or refused. (Law 6)"""
        version = direct.put("a", b"1")
        acts = {
            "get": lambda: struck.get("a"),
            "head": lambda: struck.head("a"),
            "list": lambda: list(struck.list_objects("")),
            "folders": lambda: struck.list_folders(""),
            "checksum": lambda: struck.checksum_of("a"),
            "create": lambda: struck.create("b", b"2"),
            "replace": lambda: struck.replace("a", b"2", version),
            "put": lambda: struck.put("a", b"2"),
            "delete": lambda: struck.delete("a", version),
            "copy": lambda: struck.copy("a", "c"),
            "link_many": lambda: struck.link_many([Link("a", f"c/{number}") for number in range(50)]),
            "delete_many": lambda: struck.delete_many(["a"]),
        }
        s3_proxy.is_out.set()
        for name, act in acts.items():
            begun = clock.monotonic_seconds()
            with pytest.raises((UnavailableError, OutcomeUnknownError)) as caught:
                act()
            is_write = name not in ("get", "head", "list", "folders", "checksum")
            assert isinstance(caught.value, OutcomeUnknownError) == is_write, name
            assert clock.monotonic_seconds() - begun < TRY_FOR_SECONDS * (1 if name != "link_many" else 3)
        s3_proxy.is_out.clear()
        assert [(info.key, info.size_bytes) for info in struck.list_objects("")] == [("a", 1)]
        assert struck.replace("a", b"2", version) == direct.get("a").version


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code", "kind", "words"),
        [
            (403, "AccessDenied", StoreRefusedError, "denied"),
            (403, "InvalidAccessKeyId", StoreRefusedError, "does not know this access key"),
            (403, "SignatureDoesNotMatch", StoreRefusedError, "did not accept the signature"),
            (403, "RequestTimeTooSkewed", StoreRefusedError, "the clock of this machine"),
            (400, "ExpiredToken", StoreRefusedError, "have expired"),
            (404, "NoSuchBucket", StoreRefusedError, "no such bucket"),
            (409, "OperationAborted", UnavailableError, "cannot serve"),
            (429, "TooManyRequests", UnavailableError, "fewer requests"),
            (503, "SlowDown", UnavailableError, "fewer requests"),
            (503, "ServiceUnavailable", UnavailableError, "cannot serve"),
            (500, "InternalError", UnavailableError, "cannot serve"),
        ],
    )
    def test_each_answer_has_its_remedy_in_every_read(
        self,
        struck: ServerStore,
        s3_proxy: StrikingProxy,
        status: int,
        code: str,
        kind: type[StreamStateError],
        words: str,
    ) -> None:
        """Read, look, list, copy: the same answer is the same error, with what to do; never "not there (yet)"."""
        for method in ("GET", "HEAD", "PUT"):
            s3_proxy.strikes.append(Strike(method, False, status, code, times=999))
        reads = (
            lambda: struck.get("a"),
            lambda: struck.head("a"),
            lambda: struck.checksum_of("a"),
            lambda: list(struck.list_objects("")),
            lambda: struck.list_folders(""),
        )
        for read in reads:
            before = len(s3_proxy.seen)
            # A HEAD that is answered with 503 carries no code.
            with pytest.raises(kind, match=f"{words}|cannot serve") as caught:
                read()
            assert type(caught.value) is kind
            assert caught.value.next_step
            assert len(s3_proxy.seen) - before <= TRIES * 2
        with pytest.raises((kind, OutcomeUnknownError)):
            struck.copy("a", "b")


class TestRequests:
    def test_each_call_is_one_request(self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy) -> None:
        """What a call costs when nothing goes wrong."""
        version = direct.put("a", b"1")
        direct.put("deep/b", b"1")

        def cost(act: object) -> dict[str, int]:
            s3_proxy.forget()
            act()  # type: ignore[operator]
            return dict(s3_proxy.operations)

        assert cost(lambda: struck.head("none")) == {"HeadObject": 1, "GetObject": 1}  # once: is there a bucket at all
        assert cost(lambda: struck.head("none")) == {"HeadObject": 1}
        assert cost(lambda: struck.head("a")) == {"HeadObject": 1}
        assert cost(lambda: struck.checksum_of("a")) == {"HeadObject": 1}
        assert cost(lambda: struck.checksums_of(["a", "deep/b"])) == {"HeadObject": 2}
        assert cost(lambda: struck.get("a")) == {"GetObject": 1}
        assert cost(lambda: struck.get("none")) == {"GetObject": 1}
        assert cost(lambda: struck.create("c", b"")) == {"PutObject": 1}
        assert cost(lambda: struck.replace("a", b"2", version)) == {"PutObject": 1}
        assert cost(lambda: struck.put("a", b"3")) == {"PutObject": 1}
        assert cost(lambda: list(struck.list_objects(""))) == {"ListObjectsV2": 1}
        assert cost(lambda: struck.list_folders("")) == {"ListObjectsV2": 1}
        assert cost(lambda: struck.copy("a", "d")) == {"CopyObject": 1}
        assert cost(lambda: link_many(struck, [Link("a", f"e/{n}") for n in range(40)])) == {"CopyObject": 40}
        assert cost(lambda: delete_many(struck, [f"e/{n}" for n in range(40)])) == {"DeleteObjects": 1}
        assert cost(lambda: struck.delete("d")) == {"DeleteObject": 1}

    def test_a_listing_tells_versions(self, struck: ServerStore, direct: ServerStore) -> None:
        """The version of every object comes with the list and with a HEAD, so that none is read for it."""
        version = direct.put("a", b"1")
        assert [info.version for info in struck.list_objects("")] == [version]
        assert struck.head("a").version == version

    def test_a_hook_comes_between_the_look_and_the_act(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """What a test does just before a copy is forwarded has happened when the copy lands: as with Spark's S3A."""
        direct.put("temporary", b"spark's")
        met: list[str] = []

        def strike(request: object) -> None:
            if request.copy_source and request.key.endswith("offsets/5"):  # type: ignore[attr-defined]
                met.append(request.copy_source)  # type: ignore[attr-defined]
                direct.create("offsets/5", b"ours")

        s3_proxy.hooks.append(strike)
        struck.copy("temporary", "offsets/5")
        assert met == [f"{BUCKET}/{direct.prefix}/temporary"]
        assert direct.get("offsets/5").body == b"spark's"

    def test_a_missing_source_is_told_once(self, struck: ServerStore, s3_proxy: StrikingProxy) -> None:
        """What is not there is an answer, also among many."""
        with pytest.raises(ObjectMissingError):
            link_many(struck, [Link("none", "a")])
        assert len(s3_proxy.seen) == 1
