"""A request to S3: its operation, and the actions that a policy must allow for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "GetObject": ("s3:GetObject",),
    "HeadObject": ("s3:GetObject",),
    "PutObject": ("s3:PutObject",),
    "DeleteObject": ("s3:DeleteObject",),
    "DeleteObjects": ("s3:DeleteObject",),
    "CopyObject": ("s3:GetObject", "s3:PutObject"),
    "ListObjectsV2": ("s3:ListBucket",),
    "ListObjects": ("s3:ListBucket",),
    "HeadBucket": ("s3:ListBucket",),
    "CreateMultipartUpload": ("s3:PutObject",),
    "UploadPart": ("s3:PutObject",),
    "UploadPartCopy": ("s3:GetObject", "s3:PutObject"),
    "CompleteMultipartUpload": ("s3:PutObject",),
    "AbortMultipartUpload": ("s3:AbortMultipartUpload",),
    "ListMultipartUploads": ("s3:ListBucketMultipartUploads",),
}
"""As in Amazon's "Required permissions for Amazon S3 API operations". Others have the operation's own name."""


@dataclass(frozen=True)
class S3Request:
    """One request as it came.

    Attributes:
        path: as it was sent, with its query.
        headers: by their names in lower case.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body_bytes: int = 0

    @property
    def key(self) -> str:
        """The object's key in its bucket, decoded; "" for the bucket itself."""
        return unquote(self.path.partition("?")[0].lstrip("/").partition("/")[2])

    @property
    def copy_source(self) -> str:
        """Bucket and key of what is copied, decoded; "" where nothing is."""
        return unquote(self.headers.get("x-amz-copy-source", "")).lstrip("/")

    @property
    def operation(self) -> str:
        """S3's name of what is asked."""
        query = parse_qs(self.path.partition("?")[2], keep_blank_values=True)
        return self._of_object(query) if self.key else self._of_bucket(query)

    @property
    def actions(self) -> tuple[str, ...]:
        """What a policy must allow for it."""
        named = ACTIONS.get(self.operation, (f"s3:{self.operation}",))
        # A conditional write by entity tag looks at what is there.
        return (*named, "s3:GetObject") if "if-match" in self.headers and self.method != "GET" else named

    def _of_object(self, query: Mapping[str, list[str]]) -> str:
        is_copy = "x-amz-copy-source" in self.headers
        if "uploadId" in query:
            part = "UploadPartCopy" if is_copy else "UploadPart"
            return {
                "PUT": part,
                "POST": "CompleteMultipartUpload",
                "DELETE": "AbortMultipartUpload",
                "GET": "ListParts",
            }[self.method]
        if "uploads" in query:
            return "CreateMultipartUpload"
        for special in ("tagging", "acl", "retention", "legal-hold", "attributes"):
            if special in query:
                return f"{self.method.capitalize()}Object{special.title().replace('-', '')}"
        plain = {"GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
        return plain.get(self.method, "CopyObject" if is_copy else "PutObject")

    def _of_bucket(self, query: Mapping[str, list[str]]) -> str:
        if self.method == "GET":
            for name, operation in (("location", "GetBucketLocation"), ("uploads", "ListMultipartUploads")):
                if name in query:
                    return operation
            return "ListObjectsV2" if "list-type" in query else "ListObjects"
        return {"HEAD": "HeadBucket", "POST": "DeleteObjects", "PUT": "CreateBucket"}.get(self.method, "DeleteBucket")
