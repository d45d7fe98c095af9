"""ServerStore with lost replies, refusals and slow servers, each behind a striking proxy."""

from __future__ import annotations

import threading

import boto3
import pytest
from botocore.exceptions import ClientError

from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.store.base import Link
from airflow_streamstate.store.options import S3Options
from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.server import TRIES, ServerStore
from airflow_streamstate.store.transfer import delete_below, link_many
from support.fake_clock import FakeClock
from support.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Strike, StrikingProxy, options_for

PART_BYTES = 5 * 1024 * 1024  # S3 takes no smaller parts
MINE = b'{"write_id": "mine"}'
LOST = Strike("PUT", forward=True)
BROKEN_AFTER = Strike("PUT", forward=True, status=500, code="InternalError")
BROKEN_BEFORE = Strike("PUT", forward=False, status=500, code="InternalError")
NEVER_ARRIVED = Strike("PUT", forward=False)
LANDED = pytest.mark.parametrize("strike", [LOST, BROKEN_AFTER], ids=["lost", "500"])


LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"the rest"


def in_parts(proxy: StrikingProxy, prefix: str) -> ServerStore:
    """A store whose server copies at most PART_BYTES in one request."""
    return s3_store(
        BUCKET,
        prefix,
        options_for(proxy.endpoint_url),
        clock=FakeClock(),
        single_copy_bytes=PART_BYTES,
        part_bytes=PART_BYTES,
    )


def again(strike: Strike, times: int = 1) -> Strike:
    return Strike(strike.method, strike.forward, strike.status, strike.code, times)


@pytest.fixture
def direct(s3_endpoint_url: str, s3_prefix: str) -> ServerStore:
    """The same place without the proxy: what others write and read at the same time."""
    return s3_store(BUCKET, s3_prefix, options_for(s3_endpoint_url))


@pytest.fixture
def struck(s3_proxy: StrikingProxy, s3_prefix: str) -> ServerStore:
    return s3_store(BUCKET, s3_prefix, options_for(s3_proxy.endpoint_url), clock=FakeClock())


class TestLostReply:
    def test_the_default_client_takes_its_own_write_for_anothers(self, s3_proxy: StrikingProxy, s3_prefix: str) -> None:
        """boto3's own client, its first reply lost, tries again and reports 412: the trap that the store avoids."""
        client = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY).client(
            "s3", region_name=REGION, endpoint_url=s3_proxy.endpoint_url
        )
        s3_proxy.strikes.append(again(LOST))
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=BUCKET, Key=f"{s3_prefix}/claim", Body=MINE, IfNoneMatch="*")
        client.close()

    @LANDED
    def test_a_create_that_landed_is_ours(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, strike: Strike
    ) -> None:
        """A create whose reply was lost succeeds with the version that is there, after one try. (Law 8)"""
        s3_proxy.strikes.append(again(strike))
        version = struck.create("claim", MINE)
        assert direct.get("claim").version == version
        assert direct.get("claim").body == MINE
        assert s3_proxy.count("PUT") == 1

    @LANDED
    def test_a_replace_that_landed_is_ours(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, strike: Strike
    ) -> None:
        """A replace whose reply was lost succeeds with the version that is there, after one try. (Law 8)"""
        before = direct.create("register", b"1")
        s3_proxy.strikes.append(again(strike))
        version = struck.replace("register", MINE, before)
        assert direct.get("register").version == version
        assert s3_proxy.count("PUT") == 1

    @pytest.mark.parametrize("strike", [NEVER_ARRIVED, BROKEN_BEFORE], ids=["closed", "500"])
    def test_a_write_that_did_not_land_is_tried_again(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, strike: Strike
    ) -> None:
        """Where the read-back finds the old state, the write is tried again, under its condition."""
        before = direct.create("register", b"1")
        s3_proxy.strikes.append(again(strike, 2))
        struck.replace("register", MINE, before)
        s3_proxy.strikes.append(again(strike, 2))
        struck.create("claim", MINE)
        s3_proxy.strikes.append(again(strike, 2))
        struck.put("beacon", MINE)
        assert {direct.get(key).body for key in ("register", "claim", "beacon")} == {MINE}

    def test_a_lost_write_beside_anothers_is_no_success(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """Another's record means that someone else won; over a register this write may have landed before (Law 8)."""
        direct.create("claim", b"theirs")
        s3_proxy.strikes.append(again(LOST))
        with pytest.raises(ObjectExistsError):
            struck.create("claim", MINE)
        before = direct.get("claim").version
        direct.put("claim", b"theirs again")
        s3_proxy.strikes.append(again(LOST))
        with pytest.raises(OutcomeUnknownError):
            struck.replace("claim", MINE, before)
        assert direct.get("claim").body == b"theirs again"

    def test_unreadable_stays_unknown(self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy) -> None:
        """Lost and then unreadable is reported as unknown, never as won or lost. (Law 8)"""
        before = direct.create("register", b"1")
        s3_proxy.strikes += [Strike("PUT", forward=True, times=9), Strike("GET", forward=False, times=99)]
        for act in (
            lambda: struck.create("claim", MINE),
            lambda: struck.replace("register", MINE, before),
            lambda: struck.put("beacon", MINE),
        ):
            with pytest.raises(OutcomeUnknownError) as caught:
                act()
            assert caught.value.context["bucket"] == BUCKET
        assert s3_proxy.count("PUT") == 3

    def test_tries_have_an_end(self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy) -> None:
        """A write that never lands is unknown after a bounded number of tries. (Law 6)"""
        s3_proxy.strikes.append(Strike("PUT", forward=False, times=99))
        with pytest.raises(OutcomeUnknownError):
            struck.create("claim", MINE)
        assert s3_proxy.count("PUT") == TRIES
        assert direct.get("claim") is None

    def test_a_server_that_is_silent_is_left(
        self, s3_proxy: StrikingProxy, s3_prefix: str, direct: ServerStore
    ) -> None:
        """A reply that does not come within the read timeout counts as lost. (Law 6)"""
        options = options_for(s3_proxy.endpoint_url, read_timeout_seconds=0.3)
        store = s3_store(BUCKET, s3_prefix, options, clock=FakeClock())
        release = threading.Event()
        s3_proxy.strikes.append(Strike("PUT", forward=True, hold=release))
        try:
            assert store.create("claim", MINE) == direct.get("claim").version
        finally:
            release.set()

    def test_a_lost_delete_is_read_back(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """A delete whose reply was lost is done, with or without a version; one that met another version is refused."""
        for version in (direct.put("a", b"1"), None):
            direct.put("a", b"1")
            s3_proxy.strikes.append(Strike("DELETE", forward=True))
            struck.delete("a", version)
            assert direct.get("a") is None
        direct.put("a", b"2")
        s3_proxy.strikes.append(Strike("DELETE", forward=True))
        with pytest.raises(VersionConflictError):
            struck.delete("a", '"another"')
        s3_proxy.strikes.append(Strike("DELETE", forward=False, times=2))
        struck.delete("a")
        assert direct.get("a") is None


class TestBusy:
    def test_a_conflicting_conditional_write_is_tried_again(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """AWS's 409 means that another conditional write was under way: read again, then try again."""
        before = direct.create("register", b"1")
        for act in (
            lambda: struck.create("claim", MINE),
            lambda: struck.replace("register", MINE, before),
            lambda: struck.put("beacon", MINE),
        ):
            s3_proxy.strikes.append(Strike("PUT", False, 409, "ConditionalRequestConflict", times=2))
            act()
        assert {direct.get(key).body for key in ("claim", "register", "beacon")} == {MINE}
        s3_proxy.strikes.append(Strike("DELETE", False, 409, "ConditionalRequestConflict", times=2))
        struck.delete("claim", direct.get("claim").version)
        s3_proxy.strikes.append(Strike("DELETE", False, 409, "OperationAborted"))
        struck.delete("beacon")
        assert [info.key for info in direct.list_objects("")] == ["register"]

    def test_busy_because_another_won_is_a_loss(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """After a 409 equal bytes are another's, too: this write did not land."""
        direct.create("claim", MINE)
        s3_proxy.strikes.append(Strike("PUT", False, 409, "ConditionalRequestConflict"))
        with pytest.raises(ObjectExistsError):
            struck.create("claim", MINE)

    def test_busy_for_ever_is_a_conflict(self, struck: ServerStore, s3_proxy: StrikingProxy) -> None:
        """A bounded number of 409 ends as the conflict that it is. (Law 6)"""
        s3_proxy.strikes.append(Strike("PUT", False, 409, "ConditionalRequestConflict", times=99))
        with pytest.raises(ObjectExistsError):
            struck.create("claim", MINE)
        assert s3_proxy.count("PUT") == TRIES


class TestUnavailable:
    @pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "TooManyRequests")])
    def test_a_write_that_was_turned_away_changed_nothing(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, status: int, code: str
    ) -> None:
        """A server that answers "slow down" has not written: tried again with pauses, then reported as unavailable."""
        s3_proxy.strikes.append(Strike("PUT", False, status, code, times=2))
        struck.create("first", MINE)
        s3_proxy.strikes.append(Strike("PUT", False, status, code, times=99))
        with pytest.raises(UnavailableError):
            struck.create("second", MINE)
        assert [info.key for info in direct.list_objects("")] == ["first"]

    def test_a_full_server_loses_nothing(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """A server without space answers each write with 507: what is there stays complete; the caller learns why."""
        before = direct.put("a", b"1")
        s3_proxy.strikes.append(Strike("PUT", False, 507, "InsufficientStorage", times=99))
        for act in (
            lambda: struck.put("a", MINE),
            lambda: struck.create("b", MINE),
            lambda: struck.replace("a", MINE, before),
            lambda: struck.copy("a", "c"),
            lambda: struck.link("a", "c"),
        ):
            with pytest.raises(UnavailableError):
                act()
        assert [(info.key, info.size_bytes) for info in direct.list_objects("")] == [("a", 1)]

    def test_reads_are_tried_again_then_unavailable(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """Reads survive a lost reply; a server that stays broken is unavailable, never absent."""
        direct.put("a/b", b"1")
        reads = [
            ("GET", lambda: struck.get("a/b").body, b"1"),
            ("HEAD", lambda: struck.head("a/b").size_bytes, 1),
            ("GET", lambda: [info.key for info in struck.list_objects("a/")], ["a/b"]),
            ("GET", lambda: struck.list_folders(""), ["a"]),
        ]
        for method, read, expected in reads:
            for status in (0, 500, 503):
                s3_proxy.strikes = [Strike(method, False, status, "Broken")]
                assert read() == expected
                s3_proxy.strikes = [Strike(method, False, status, "Broken", times=99)]
                with pytest.raises(UnavailableError):
                    read()

    def test_a_server_that_is_not_there(self, s3_prefix: str) -> None:
        """Where nothing listens, reads and writes are unavailable: nothing was sent, so nothing is unknown."""
        store = s3_store(BUCKET, s3_prefix, options_for("http://127.0.0.1:9"), clock=FakeClock())
        for act in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.create("a", b"")):
            with pytest.raises(UnavailableError, match="cannot be reached"):
                act()


class TestRefused:
    @pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
    def test_denied_names_bucket_and_action_and_no_credential(
        self, struck: ServerStore, s3_proxy: StrikingProxy, method: str
    ) -> None:
        """A denied request is a mistake to fix, reported at once, with bucket and action and without a secret."""
        acts = {
            "GET": (lambda: struck.get("a"), "GetObject"),
            "PUT": (lambda: struck.put("a", b""), "PutObject"),
            "HEAD": (lambda: struck.head("a"), "GetObject"),  # what a policy calls it
            "DELETE": (lambda: struck.delete("a"), "DeleteObject"),
        }
        s3_proxy.strikes.append(Strike(method, False, 403, "AccessDenied", times=99))
        if method == "HEAD":  # whose answer contains nothing but 403
            s3_proxy.strikes.append(Strike("GET", False, 403, "AccessDenied", times=99))
        with pytest.raises(InvalidRequestError) as caught:
            acts[method][0]()
        assert f"action={acts[method][1]} bucket={BUCKET} key=a" in str(caught.value)
        assert "s3:ListBucket" in str(caught.value)
        assert "test-key" not in str(caught.value)
        assert "test-secret" not in str(caught.value)
        assert s3_proxy.count(method) == 1

    def test_refused_after_doubt_stays_unknown(self, struck: ServerStore, s3_proxy: StrikingProxy) -> None:
        """A try that may have landed is not undone by the refusal of the next one. (Law 8)"""
        s3_proxy.strikes += [again(NEVER_ARRIVED), Strike("PUT", False, 403, "ExpiredToken")]
        with pytest.raises(OutcomeUnknownError):
            struck.create("claim", MINE)

    def test_no_such_bucket(self, s3_endpoint_url: str) -> None:
        """A bucket that does not exist is a mistake to fix, not an empty store."""
        store = s3_store("no-such-bucket", "", options_for(s3_endpoint_url))
        for act in (
            lambda: store.get("a"),
            lambda: store.put("a", b""),
            lambda: store.create("a", b""),
            lambda: store.delete("a"),
            lambda: store.copy("a", "b"),
            lambda: list(store.list_objects("")),
        ):
            with pytest.raises(InvalidRequestError, match="no such bucket"):
                act()

    def test_no_credentials(self, s3_endpoint_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without any credentials the error states what to do."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        store = s3_store(BUCKET, "", S3Options(region=REGION, endpoint_url=s3_endpoint_url))
        with pytest.raises(InvalidRequestError, match="no credentials"):
            store.get("a")


class TestChain:
    def test_the_environment_is_honoured(
        self, s3_proxy: StrikingProxy, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without options the store goes where AWS_ENDPOINT_URL_S3 and AWS_REGION point, with the usual credentials."""
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_proxy.endpoint_url)
        monkeypatch.setenv("AWS_REGION", "eu-north-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        store = s3_store(BUCKET, s3_prefix)
        store.put("a", b"1")
        # A second one where the server reports that its bucket is in another region than this.
        assert set(s3_proxy.requests) == {("PUT", f"/{BUCKET}/{s3_prefix}/a")}
        assert store.client.boto.meta.region_name == "eu-north-1"

    def test_a_session_that_renews_itself_can_be_given(self, s3_endpoint_url: str, s3_prefix: str) -> None:
        """A connection's own session is used where one is given."""
        session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name="eu-west-3")
        store = s3_store(BUCKET, s3_prefix, S3Options(endpoint_url=s3_endpoint_url, session=session))
        store.put("a", b"1")
        assert store.client.boto.meta.region_name == "eu-west-3"

    @pytest.mark.parametrize("endpoint_url", ["nonsense", "http://"])
    def test_a_bad_endpoint_is_refused_when_opened(self, endpoint_url: str) -> None:
        """What boto3 cannot use is refused as a mistake, at once."""
        with pytest.raises(InvalidRequestError):
            s3_store(BUCKET, "", options_for(endpoint_url))


class TestObjectsOfOthers:
    def test_directory_markers_are_not_objects(self, direct: ServerStore, s3_prefix: str) -> None:
        """Keys that end in a slash, as Spark leaves them, are left out of every listing, and of every lookup."""
        direct.put("offsets/1", b"x")
        for key in ("offsets/", "commits/", "state/0/0/"):
            direct.client.boto.put_object(Bucket=BUCKET, Key=f"{s3_prefix}/{key}", Body=b"")
        assert [info.key for info in direct.list_objects("")] == ["offsets/1"]
        assert direct.get("commits") is direct.head("commits") is direct.head("state/0/0") is None
        direct.put("commits/0", b"y")
        assert [info.key for info in direct.list_objects("commits/")] == ["commits/0"]

    def test_a_folder_that_is_removed_goes_with_its_markers(self, direct: ServerStore, s3_prefix: str) -> None:
        """Else it would be listed as a folder for ever, with nothing in it; those of what stays stay."""
        direct.put("d-0001/offsets/1", b"x")
        direct.put("d-0001/spec.json", b"{}")
        direct.put("d-0002/offsets/1", b"x")
        for key in (
            "d-0001/",
            "d-0001/offsets/",
            "d-0001/state/",
            "d-0001/state/0/",
            "d-0001/kept/",
            "d-0002/offsets/",
        ):
            direct.client.boto.put_object(Bucket=BUCKET, Key=f"{s3_prefix}/{key}", Body=b"")
        delete_below(direct, "d-0001", but=("spec.json", "kept"))
        assert direct.list_folders("d-0001") == ["kept"]
        assert direct.get("d-0001/spec.json") is not None
        delete_below(direct, "d-0001")
        assert direct.list_folders("") == ["d-0002"]
        assert direct.list_folders("d-0002") == ["offsets"]
        delete_below(direct, "d-0001")

    def test_keys_that_no_key_can_be_are_not_objects(self, moto_url: str, s3_prefix: str) -> None:
        """What another program left under a key that is impossible elsewhere is left out of every listing."""
        store = s3_store(BUCKET, s3_prefix, options_for(moto_url))
        store.put("offsets/1", b"x")
        for key in ("a//b", "a/../b"):
            store.client.boto.put_object(Bucket=BUCKET, Key=f"{s3_prefix}/{key}", Body=b"")
        assert [info.key for info in store.list_objects("")] == ["offsets/1"]
        assert store.list_folders("") == ["a", "offsets"]
        assert store.list_folders("a") == []

    def test_a_neighbours_prefix_is_not_ours(self, s3_endpoint_url: str, s3_prefix: str) -> None:
        """``home/1`` does not list what is in ``home/10``."""
        s3_store(BUCKET, f"{s3_prefix}-b", options_for(s3_endpoint_url)).put("a", b"")
        store = s3_store(BUCKET, s3_prefix, options_for(s3_endpoint_url))
        assert list(store.list_objects("")) == []
        assert store.list_folders("") == []


class TestCopy:
    def test_no_byte_comes_through_us(self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy) -> None:
        """Copy and link are one request each, and the server does the work."""
        direct.put("a", b"1" * 1000)
        struck.copy("a", "b")
        struck.link("a", "c")
        assert [method for method, _ in s3_proxy.requests] == ["PUT", "PUT"]
        assert direct.get("c").body == direct.get("b").body == b"1" * 1000

    def test_an_object_too_large_for_one_request_is_copied_in_parts(
        self, s3_proxy: StrikingProxy, s3_prefix: str, direct: ServerStore
    ) -> None:
        """Above the limit of one request the server copies part by part; no byte of it comes through us."""
        direct.put("large", LARGE)
        store = in_parts(s3_proxy, s3_prefix)
        s3_proxy.strikes.append(Strike("PUT", False, 400, "InvalidRequest", path_part="/copy"))  # as AWS refuses it
        assert store.link("large", "copy") is True
        assert direct.get("copy").body == LARGE
        assert s3_proxy.operations["UploadPartCopy"] == 3
        assert s3_proxy.bytes_through < 10_000
        s3_proxy.forget()
        assert len(link_many(store, [Link("large", "again", len(LARGE)), Link("large", "twice", len(LARGE))])) == 2
        assert direct.get("again").body == direct.get("twice").body == LARGE
        assert s3_proxy.operations["CopyObject"] == 0  # the size was known

    @pytest.mark.parametrize("operation", ["uploads=", "partNumber=2", "uploadId="])
    @pytest.mark.parametrize("forward", [True, False])
    def test_a_copy_in_parts_survives_lost_replies(
        self, s3_proxy: StrikingProxy, s3_prefix: str, direct: ServerStore, operation: str, forward: bool
    ) -> None:
        """Whichever answer is lost, before or after it landed, the copy is complete. (Law 8)"""
        direct.put("large", LARGE)
        method = "PUT" if operation.startswith("part") else "POST"
        s3_proxy.strikes.append(Strike(method, forward, path_part=operation))
        [checksum] = link_many(in_parts(s3_proxy, s3_prefix), [Link("large", "copy", len(LARGE))])
        assert direct.get("copy").body == LARGE
        assert checksum == direct.checksum_of("copy")

    def test_a_copy_in_parts_that_fails_leaves_nothing(
        self, s3_proxy: StrikingProxy, s3_prefix: str, direct: ServerStore
    ) -> None:
        """What was started is aborted, and nothing is at the target."""
        direct.put("large", LARGE)
        s3_proxy.strikes.append(Strike("PUT", False, 503, "SlowDown", times=99, path_part="partNumber=3"))
        with pytest.raises(UnavailableError):
            link_many(in_parts(s3_proxy, s3_prefix), [Link("large", "copy", len(LARGE))])
        assert direct.get("copy") is None
        assert s3_proxy.operations["AbortMultipartUpload"] == 1
        assert not direct.client.boto.list_multipart_uploads(Bucket=BUCKET, Prefix=direct._name("copy")).get("Uploads")

    def test_a_refused_copy_of_a_small_object_stays_refused(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """A refusal that has nothing to do with size is reported, and nothing is at the target."""
        direct.put("a", b"1")
        s3_proxy.strikes.append(Strike("PUT", False, 400, "InvalidRequest", times=9))
        with pytest.raises(InvalidRequestError):
            struck.copy("a", "b")
        assert direct.get("b") is None

    def test_a_lost_copy_is_tried_again(
        self, struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
    ) -> None:
        """A copy may be done twice; its reply may be lost. A source that vanished is named."""
        direct.put("a", b"1")
        s3_proxy.strikes.append(again(LOST))
        struck.copy("a", "b")
        assert direct.get("b").body == b"1"
        with pytest.raises(ObjectMissingError):
            struck.copy("gone", "b")
