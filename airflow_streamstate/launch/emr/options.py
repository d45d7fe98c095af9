"""The options of the launchers for EMR: where job runs are started, and where their files and logs lie. No secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.options import read_options

if TYPE_CHECKING:
    from typing_extensions import Self

_ID = (re.compile(r"[0-9a-z]{1,64}"), "an id of lower-case letters and digits, as the AWS console shows it")
_S3 = (re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.*()=/-]*)?"), "s3://bucket/prefix")
_ROLE = (
    re.compile(r"arn:aws[a-zA-Z0-9-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+"),
    "the ARN of a role: arn:aws:iam::ACCOUNT:role/NAME",
)
_PLAIN = (re.compile(r"[\w+=,.@-]{1,128}"), "a name without blanks")
_URL = (re.compile(r"https?://[^\s?#@]+"), "a URL without a login: https://host")
_RELEASE = (re.compile(r"[A-Za-z0-9._/-]{1,64}"), "a release of EMR: emr-7.9.0-latest")
_SHAPES = {
    "application_id": _ID,
    "virtual_cluster_id": _ID,
    "execution_role_arn": _ROLE,
    "launch_uri": _S3,
    "log_uri": _S3,
    "region": _PLAIN,
    "profile": _PLAIN,
    "endpoint_url": _URL,
    "release_label": _RELEASE,
}


@dataclass(frozen=True, kw_only=True)
class EmrOptions:
    """What both launchers need.

    Attributes:
        execution_role_arn: the role with whose rights a driver works.
        launch_uri: where the files of drivers are put, for the execution role to read.
        log_uri: where EMR puts logs; "" for ``logs`` below ``launch_uri``.
        region, profile: "" for boto3's own chain, or what the Airflow connection says.
        endpoint_url: another server than AWS, for tests.
    """

    required: ClassVar[tuple[str, ...]] = ("execution_role_arn", "launch_uri")
    execution_role_arn: str = ""
    launch_uri: str = ""
    log_uri: str = ""
    region: str = ""
    profile: str = ""
    endpoint_url: str = ""

    @classmethod
    def from_options(cls, raw: Mapping[str, object]) -> Self:
        """The options of plain JSON.

        Raises:
            InvalidRequestError: a name or a value that they do not have, or one is missing.
        """
        values = read_options("emr", raw, [item.name for item in fields(cls)])
        for name, value in values.items():
            shape, words = _SHAPES[name]
            if not isinstance(value, str) or (value and not shape.fullmatch(value)):
                raise InvalidRequestError(
                    "this option of the launcher for EMR has no such value", option=name, next_step=f"Give {words}."
                )
        missing = [name for name in cls.required if not values.get(name)]
        if missing:
            raise InvalidRequestError(
                "the launcher for EMR lacks an option",
                missing=", ".join(missing),
                next_step=" ".join(f"--launcher-option {name}=…" for name in missing),
            )
        return cls(**values)  # type: ignore[arg-type]  # all are texts, as checked

    @property
    def logs_uri(self) -> str:
        """Where logs lie, without a slash at its end."""
        return (self.log_uri or f"{self.launch_uri.rstrip('/')}/logs").rstrip("/")


@dataclass(frozen=True, kw_only=True)
class EmrServerlessOptions(EmrOptions):
    """As ``EmrOptions``, and the application of EMR Serverless."""

    required = ("application_id", *EmrOptions.required)
    application_id: str = ""


@dataclass(frozen=True, kw_only=True)
class EmrOnEksOptions(EmrOptions):
    """As ``EmrOptions``, and the virtual cluster of EMR on EKS with the release that is to run in it."""

    required = ("virtual_cluster_id", "release_label", *EmrOptions.required)
    virtual_cluster_id: str = ""
    release_label: str = ""
