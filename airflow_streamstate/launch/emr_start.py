"""The entry point of a driver on EMR: fetches its folder from S3, and runs its program there as ``__main__``.

EMR starts this file alone, so it imports nothing of ours. Its arguments: the folder's URI, the program in it, then the
arguments of the program.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

OLDEST = (3, 9)


def fetch(uri: str, folder: Path) -> None:
    """Copy all objects below ``uri`` (``s3://bucket/prefix/``) into a folder."""
    try:
        import boto3
    except ImportError:
        sys.exit("streamstate: the driver's Python has no boto3. Add it to the image, or to the Python environment.")
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    client = boto3.client("s3", endpoint_url=os.environ.get("STREAMSTATE_EMR_S3_ENDPOINT") or None)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            name = item["Key"][len(prefix) :]
            # S3 has no folders, so that a name may be any text: none may lead out of ours.
            if not name or name.endswith("/") or {"", ".", ".."} & set(name.split("/")) or "\0" in name:
                sys.exit("streamstate: an object of this driver has a name that leaves its folder: " + ascii(name))
            path = folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            client.download_file(bucket, item["Key"], str(path))


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        sys.exit(
            "streamstate: the driver's Python is older than 3.9. Use an image, or an environment, with a newer one."
        )
    _folder = Path(tempfile.mkdtemp(prefix="streamstate-"))
    fetch(sys.argv[1], _folder)
    os.chdir(_folder)
    os.environ.update(json.loads((_folder / "driver.json").read_text()).get("environment", {}))
    del sys.argv[:2]
    __file__ = str(_folder / sys.argv[0])
    sys.path.insert(0, str(Path(__file__).parent))
    exec(compile(Path(__file__).read_text(), __file__, "exec", dont_inherit=True), globals())  # noqa: S102
