"""ServerStore's multipart uploads behind a striking proxy, and the leftovers of a killed process."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from airflow_streamstate.errors import OutcomeUnknownError, StoreRefusedError, StreamStateError, UnavailableError
from airflow_streamstate.store.s3 import s3_store
from airflow_streamstate.store.server import TRIES, ServerStore
from airflow_streamstate.store.transfer import end_uploads, put_pieces
from support.fake_clock import FakeClock
from support.s3_requests import S3Request
from support.s3_server import BUCKET, Strike, StrikingProxy, options_for

PART_BYTES = 5 * 1024 * 1024  # S3 takes no smaller parts
LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"the rest"
LATER = datetime(2200, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def direct(s3_endpoint_url: str, s3_prefix: str) -> ServerStore:
    """The same place without the proxy."""
    return s3_store(BUCKET, s3_prefix, options_for(s3_endpoint_url))


@pytest.fixture
def struck(s3_proxy: StrikingProxy, s3_prefix: str) -> ServerStore:
    options = options_for(s3_proxy.endpoint_url)
    return s3_store(BUCKET, s3_prefix, options, clock=FakeClock(), upload_part_bytes=PART_BYTES)


def pieces() -> Iterator[bytes]:
    return (LARGE[start : start + 999_999] for start in range(0, len(LARGE), 999_999))


def put(store: ServerStore, key: str = "large") -> str:
    return put_pieces(store, key, pieces(), len(LARGE))


def unfinished(store: ServerStore) -> list[str]:
    """The keys of all uploads below the prefix of a store that are neither completed nor aborted."""
    found = store.client.boto.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{store.prefix}/").get("Uploads", ())
    return [upload["Key"] for upload in found]


def test_a_large_object_goes_in_parts_and_keeps_its_checksum(
    struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
) -> None:
    """One request for each part and two more; the server reports the same as for an object that is put at once."""
    version = put(struck)
    operations = {"CreateMultipartUpload": 1, "UploadPart": 3, "CompleteMultipartUpload": 1}
    assert dict(s3_proxy.operations) == operations
    assert direct.get("large").version == version
    assert direct.get("large").body == LARGE
    assert direct.checksum_of("large") == f"crc32:{zlib.crc32(LARGE):08x}"
    direct.copy("large", "copy")
    assert direct.checksum_of("copy") == direct.checksum_of("large")
    direct.replace("large", b"small", version)


@pytest.mark.parametrize("operation", ["uploads", "partNumber=2", "uploadId="])
@pytest.mark.parametrize("strike", ["lost", "500", "turned-away"])
def test_it_survives_any_answer_that_is_lost(
    struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, operation: str, strike: str
) -> None:
    """Before or after it landed: the object is complete, and its version is that of what is there. (Law 8)"""
    method = "PUT" if operation.startswith("part") else "POST"
    status, code = {"lost": (0, ""), "500": (500, "InternalError"), "turned-away": (503, "SlowDown")}[strike]
    is_forwarded = strike != "turned-away"
    s3_proxy.strikes.append(Strike(method, is_forwarded, status, code, path_part=operation))
    direct.put("large", b"old")
    version = put(struck)
    assert (direct.get("large").version, direct.get("large").body) == (version, LARGE)


@pytest.mark.parametrize("operation", ["uploads", "partNumber=2", "uploadId="])
@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (403, "AccessDenied")])
def test_what_fails_leaves_nothing(
    struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy, operation: str, status: int, code: str
) -> None:
    """What was there stays, what was started is aborted; only a completion is reported as one that may have landed."""
    direct.put("large", b"old")
    method = "PUT" if operation.startswith("part") else "POST"
    s3_proxy.strikes.append(Strike(method, False, status, code, times=99, path_part=operation))
    with pytest.raises(StreamStateError) as caught:
        put(struck)
    is_doubtful = operation == "uploadId=" and status == 500
    kind = OutcomeUnknownError if is_doubtful else StoreRefusedError if status == 403 else UnavailableError
    assert type(caught.value) is kind
    assert direct.get("large").body == b"old"
    assert unfinished(direct) == []
    assert len(s3_proxy.seen) <= 3 + 3 * TRIES


def test_a_write_that_followed_a_completion_stays(
    struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy
) -> None:
    """The answer of the completion is lost, and another object is there: it is not written again. (Law 8)"""
    s3_proxy.strikes.append(Strike("POST", True, path_part="uploadId="))

    def overtake(request: S3Request) -> None:
        if request.operation == "HeadObject":
            direct.put("large", b"another's")

    s3_proxy.hooks.append(overtake)
    with suppress(OutcomeUnknownError):  # or it was done before the other's, where the server still knows
        put(struck)
    assert direct.get("large").body == b"another's"


def test_what_a_killed_process_left_is_ended(struck: ServerStore, direct: ServerStore, s3_proxy: StrikingProxy) -> None:
    """By a later search below its folder; no other upload is, and no younger one."""
    for key in ("orders/data/a", "orders/data/b", "others/a"):
        name = f"{direct.prefix}/{key}"
        begun = direct.client.boto.create_multipart_upload(Bucket=BUCKET, Key=name)
        direct.client.boto.upload_part(
            Bucket=BUCKET, Key=name, UploadId=begun["UploadId"], PartNumber=1, Body=b"x" * PART_BYTES
        )
    put(struck, "orders/data/whole")
    assert end_uploads(direct, "orders", datetime.min.replace(tzinfo=timezone.utc) + timedelta(days=1)) == 0
    assert end_uploads(direct, "orders", LATER, is_dry=True) == 2
    assert len(unfinished(direct)) == 3
    assert end_uploads(direct, "orders", LATER) == 2
    assert unfinished(direct) == [f"{direct.prefix}/others/a"]
    assert direct.get("orders/data/whole").body == LARGE
    s3_proxy.strikes.append(Strike("GET", False, 403, "AccessDenied", times=9, path_part="uploads"))
    assert end_uploads(struck, "others", LATER) == 0
    assert end_uploads(direct, "others", LATER) == 1
