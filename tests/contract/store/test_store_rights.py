"""The rights of the page, put on a real server that enforces them: what a driver may write, and what it may not."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from unit.protocol.test_signed_keys import keys_of_layout

from airflow_streamstate.protocol.signing import driver_may_write
from support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, make_bucket
from support.versitygw import find_or_build, versitygw

pytestmark = pytest.mark.s3

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "store-rights.md"
BUCKET, DRIVER, DRIVER_SECRET = "rights", "driver-key", "driver-secret-key"
STREAM = "flights"


def statements(table: str) -> list[dict[str, Any]]:
    """The statements of a policy of the page, for this bucket and the user of the drivers."""
    found = re.search(rf"<!-- table {table} -->\n\n```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    policy = json.loads(found[1].replace(":::BUCKET", f":::{BUCKET}"))
    return [{**one, "Principal": {"AWS": [DRIVER]}} for one in policy["Statement"]]


def client(url: str, access_key: str, secret_key: str) -> Any:
    return boto3.Session(access_key, secret_key).client("s3", region_name=REGION, endpoint_url=url)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client with a driver's rights, on a server with users of its own."""
    program = find_or_build()
    if program is None:
        pytest.skip("there is no Go for the server")
    with versitygw(program, ACCESS_KEY, SECRET_KEY, REGION, tmp_path_factory.mktemp("users")) as url:
        make_bucket(url, BUCKET)
        admin = [str(program), "admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", url]
        user = ["create-user", "--access", DRIVER, "--secret", DRIVER_SECRET, "--role", "user"]
        subprocess.run([*admin, *user], check=True, capture_output=True)
        root = client(url, ACCESS_KEY, SECRET_KEY)
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements("s3_drivers")})
        root.put_bucket_policy(Bucket=BUCKET, Policy=policy)
        for key in ("streams/home.json", f"streams/{STREAM}/stream.json", "streams/other/stream.json"):
            root.put_object(Bucket=BUCKET, Key=key, Body=b"{}")
        yield client(url, DRIVER, DRIVER_SECRET)


def is_refused(act: Any, **words: Any) -> bool:
    try:
        act(Bucket=BUCKET, **words)
    except ClientError as error:
        if error.response["Error"]["Code"] != "AccessDenied":
            raise
        return True
    return False


def test_a_driver_writes_its_own_objects_and_no_record_of_a_controller(driver: Any) -> None:
    """Every key of the layout: put, and deleted; deleting a record is as good as forging one."""
    wrong = {}
    for key in keys_of_layout(STREAM).values():
        if key.startswith("home.feed"):
            continue
        expected = not driver_may_write(key)
        where = f"streams/{key}"
        found = is_refused(driver.put_object, Key=where, Body=b"x"), is_refused(driver.delete_object, Key=where)
        if found != (expected, expected):
            wrong[key] = found
    assert wrong == {}


def test_a_driver_reads_what_it_needs_and_writes_no_other_stream(driver: Any) -> None:
    """Its register and the home's record it reads; another stream it neither reads nor writes."""
    assert not is_refused(driver.get_object, Key=f"streams/{STREAM}/stream.json")
    assert not is_refused(driver.get_object, Key="streams/home.json")
    assert not is_refused(driver.put_object, Key="streams/home.feed/20260301T1000/flights~x.json", Body=b"{}")
    assert is_refused(driver.put_object, Key="streams/home.json", Body=b"{}")
    assert is_refused(driver.get_object, Key="streams/other/stream.json")
    for key in ("streams/other/stream.json", "streams/other/deployments/d-0001/commands/00000001.json"):
        assert is_refused(driver.put_object, Key=key, Body=b"{}")
        assert is_refused(driver.delete_object, Key=key)
