"""An upload in parts, as S3 is asked for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_streamstate.store.s3 import Requests, Upload
from airflow_streamstate.store.server import Answer, RequestFailure
from airflow_streamstate.store.transfer import MOST_PARTS, UPLOADS_AT_ONCE
from support.fake_clock import FakeClock

PART_BYTES = 100
BODY = bytes(range(250)) * 10


class Client:
    """What S3 would answer; fails where it is told to."""

    def __init__(self, failing: str = "", answer: Answer = Answer.REFUSED, code: str = "AccessDenied") -> None:
        self.failing = failing
        self.failure = RequestFailure(answer, 403, code, "struck")
        self.seen: list[str] = []
        self.parts: dict[int, bytes] = {}
        self.there: dict[str, Any] = {"ETag": '"anothers"', "Metadata": {}}

    def _met(self, operation: str) -> None:
        self.seen.append(operation)
        if operation == self.failing:
            raise self.failure

    def create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._met("create_multipart_upload")
        return {"UploadId": "one"}

    def upload_part(self, **request: Any) -> dict[str, Any]:
        self._met("upload_part")
        self.parts[request["PartNumber"]] = request["Body"]
        return {"ETag": f'"{request["PartNumber"]}"'}

    def complete_multipart_upload(self, **request: Any) -> dict[str, Any]:
        self._met("complete_multipart_upload")
        numbers = [part["PartNumber"] for part in request["MultipartUpload"]["Parts"]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert request["UploadId"] == "one"
        return {"ETag": '"whole"'}

    def abort_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._met("abort_multipart_upload")
        return {}

    def head_object(self, **_: Any) -> dict[str, Any]:
        self._met("head_object")
        return self.there


def upload(client: Client, patient: Client | None = None) -> Upload:
    clock = FakeClock()
    quick, slow = Requests(client, "streams", clock), Requests(patient or client, "streams", clock)
    return Upload(quick, slow, "home/a", "write-1")


def pieces(body: bytes = BODY) -> Iterator[bytes]:
    return (body[start : start + 33] for start in range(0, len(body), 33))


def test_few_parts_are_under_way() -> None:
    """No piece is asked for while as many parts as may be are under way: so many are held, whatever the size."""
    count = 50
    asked = threading.Condition()
    given = 0
    ahead: list[int] = []

    class Slow(Client):
        """Answers for a part when nothing more is to be had before that."""

        def upload_part(self, **request: Any) -> dict[str, Any]:
            with asked:
                assert asked.wait_for(lambda: given >= min(count, request["PartNumber"] + UPLOADS_AT_ONCE - 1), 20)
            return super().upload_part(**request)

    client = Slow()

    def counted() -> Iterator[bytes]:
        nonlocal given
        for _ in range(count):
            with asked:
                given += 1
                ahead.append(given - len(client.parts))
                asked.notify_all()
            yield bytes(PART_BYTES)

    upload(client).run(counted(), count * PART_BYTES, PART_BYTES)
    assert len(client.parts) == count
    assert max(ahead) == UPLOADS_AT_ONCE


def test_the_parts_are_the_body() -> None:
    """In order, of one size; and of what has too many of them they are larger."""
    client = Client()
    assert upload(client).run(pieces(), len(BODY), PART_BYTES) == '"whole"'
    assert b"".join(client.parts[number] for number in sorted(client.parts)) == BODY
    assert {len(part) for part in client.parts.values()} == {PART_BYTES}
    many = Client()
    upload(many).run([bytes(MOST_PARTS + 1)], MOST_PARTS + 1, 1)
    assert len(many.parts) <= MOST_PARTS


@pytest.mark.parametrize("failing", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
@pytest.mark.parametrize("answer", [Answer.REFUSED, Answer.NOT_DONE, Answer.UNKNOWN])
def test_what_failed_is_aborted(failing: str, answer: Answer) -> None:
    """And only of a completion nobody knows whether it landed: a part is not seen. (Law 8)"""
    client = Client(failing, answer)
    with pytest.raises(RequestFailure) as caught:
        upload(client).run(pieces(), len(BODY), PART_BYTES)
    is_doubtful = failing == "complete_multipart_upload" and answer is Answer.UNKNOWN
    assert (caught.value.answer is Answer.UNKNOWN) == is_doubtful
    assert ("abort_multipart_upload" in client.seen) == (failing != "create_multipart_upload")


def test_only_what_takes_its_time_is_waited_for_with_patience() -> None:
    """Parts and the completion: a server that is silent from the beginning is left as soon as with any put. (Law 6)"""
    quick, patient = Client(), Client("complete_multipart_upload", Answer.UNKNOWN)
    with pytest.raises(RequestFailure):
        upload(quick, patient).run(pieces(), len(BODY), PART_BYTES)
    assert set(quick.seen) == {"create_multipart_upload", "head_object", "abort_multipart_upload"}
    assert set(patient.seen) == {"upload_part", "complete_multipart_upload"}


def test_whoever_gives_up_is_told_his_own_reason() -> None:
    """The upload is aborted when no part is under way any more."""

    class StopError(Exception):
        """Somebody wants it to end."""

    def stopping() -> Iterator[bytes]:
        yield from pieces(BODY[: len(BODY) // 2])
        raise StopError

    client = Client()
    with pytest.raises(StopError):
        upload(client).run(stopping(), len(BODY), PART_BYTES)
    assert client.seen[-1] == "abort_multipart_upload"
    assert "complete_multipart_upload" not in client.seen


MINE = {"ETag": '"mine"', "Metadata": {"streamstate-write": "write-1"}}


class Lost(Client):
    """Completes, and the answer is lost; what is asked after that is answered as told."""

    def __init__(self, then: RequestFailure) -> None:
        super().__init__()
        self.answers = [RequestFailure(Answer.UNKNOWN, 500, "InternalError", "lost"), *[then] * 9]

    def complete_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._met("complete_multipart_upload")
        raise self.answers.pop(0)


THEN = [
    RequestFailure(Answer.REFUSED, 404, "NoSuchUpload", "it is over"),
    RequestFailure(Answer.REFUSED, 403, "AccessDenied", "no more"),
    RequestFailure(Answer.NOT_DONE, 503, "SlowDown", "later"),
]


@pytest.mark.parametrize("then", THEN, ids=["over", "denied", "slow"])
def test_a_completion_that_landed_is_known_by_its_write_id(then: RequestFailure) -> None:
    """Its answer was lost; what is there says whose it is, before anything is asked again. (Law 8)"""
    client = Lost(then)
    client.there = MINE
    assert upload(client).run(pieces(), len(BODY), PART_BYTES) == '"mine"'
    assert client.seen.count("complete_multipart_upload") == 1


@pytest.mark.parametrize("then", THEN, ids=["over", "denied", "slow"])
def test_a_doubt_stays_one(then: RequestFailure) -> None:
    """Whatever is said of a later try: another's object is there, and the first try may have been before it. (Law 8)"""
    with pytest.raises(RequestFailure) as caught:
        upload(Lost(then)).run(pieces(), len(BODY), PART_BYTES)
    assert caught.value.answer is Answer.UNKNOWN


@pytest.mark.parametrize("failing", ["upload_part", "complete_multipart_upload"])
def test_an_upload_that_somebody_ended_can_be_begun_anew(failing: str) -> None:
    """A rule of the bucket may: nothing was changed, and nobody is told that he did something wrong."""
    with pytest.raises(RequestFailure) as caught:
        upload(Client(failing, Answer.REFUSED, "NoSuchUpload")).run(pieces(), len(BODY), PART_BYTES)
    assert caught.value.answer is Answer.NOT_DONE
