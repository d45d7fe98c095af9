"""``driver.json``: which attempt a driver is, where its home is, which script it runs. ``spec.json`` has the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from airflow_streamstate.control.objects import Bell
from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.ids import is_scratch_id
from airflow_streamstate.store.options import AzureOptions, GCSOptions, S3Options, S3Role, StoreOptions

DriverKind = Literal["attempt", "scratch", "reading"]


@dataclass(frozen=True)
class DriverConfig:
    """The content of ``driver.json``.

    Attributes:
        checkpoints_uri: where Spark's checkpoints are: a folder of this machine, or on S3.
        launch_key: names this driver.
        application: local path of the script, its modules alongside it; a relative one is below the folder of the file.
        script_path: where the script was deployed from, its ``__file__``; None for ``application``.
        modules: paths of the modules below the folder of ``application``.
        secrets: resolved secrets, removed from everything that the driver prints or records.
        reading: which state of snapshots to read (``snapshot.state_tables``); None for a driver that runs its script.
        s3_…, gcs_…, azure_…: how to reach the stores of the home (``store.options``); None for what the environment
            sets. Credentials are never here.
        environment: variables that the driver sets itself, where its launcher could not.
        home_id: of a driver on another machine: the id of the home that it is meant to see; None for one here.
        has_witness: of such a driver: the folder of its checkpoints has ``layout.witness_key``.
        launch_folder: the folder in which the file is; "" where it was not read from a file.
    """

    home_uri: str
    checkpoints_uri: str
    stream_id: str
    deployment_id: str
    attempt: int
    launch_key: str
    application: str
    arguments: tuple[str, ...] = ()
    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    secrets: tuple[str, ...] = ()
    s3_profile_name: str | None = None
    reading: Mapping[str, Any] | None = None
    script_path: str | None = None
    modules: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    home_id: str | None = None
    has_witness: bool = False
    launch_folder: str = ""
    s3_role_arn: str | None = None
    s3_role_external_id: str | None = None
    s3_role_session_name: str | None = None
    s3_role_duration_seconds: int | None = None
    gcs_endpoint_url: str | None = None
    azure_account_name: str | None = None
    azure_endpoint_url: str | None = None

    @property
    def kind(self) -> DriverKind:
        """What this driver is: an attempt; a scratch run that runs a script; or one that reads state instead."""
        if self.reading is not None:
            return "reading"
        return "scratch" if is_scratch_id(self.deployment_id) else "attempt"

    @property
    def store_options(self) -> StoreOptions:
        """These fields as options of stores."""
        s3 = S3Options(self.s3_region, self.s3_endpoint_url, profile_name=self.s3_profile_name, role=self._s3_role)
        azure = AzureOptions(self.azure_account_name, endpoint_url=self.azure_endpoint_url)
        return StoreOptions(s3, GCSOptions(self.gcs_endpoint_url), azure)

    @property
    def _s3_role(self) -> S3Role | None:
        if self.s3_role_arn is None:
            return None
        of_arn = S3Role(self.s3_role_arn, self.s3_role_external_id)
        return replace(
            of_arn,
            session_name=self.s3_role_session_name or of_arn.session_name,
            duration_seconds=self.s3_role_duration_seconds or of_arn.duration_seconds,
        )

    def to_json(self) -> dict[str, object]:
        """The content of ``driver.json``."""
        content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        del content["launch_folder"]
        return content

    def bell(self, name: str) -> Bell:
        """A bell of this driver."""
        return Bell.of_launch({"folder": self.launch_folder}, name)

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> DriverConfig:
        """The configuration in this JSON object; unknown fields are ignored (Law 7).

        Raises:
            MalformedMessageError: a field is missing or of a different type.
        """
        attempt = raw.get("attempt")
        if not isinstance(attempt, int) or isinstance(attempt, bool):
            raise _malformed("attempt is not a number")
        return cls(
            home_uri=_text(raw, "home_uri"),
            checkpoints_uri=_text(raw, "checkpoints_uri"),
            stream_id=_text(raw, "stream_id"),
            deployment_id=_text(raw, "deployment_id"),
            attempt=attempt,
            launch_key=_text(raw, "launch_key"),
            application=_text(raw, "application"),
            arguments=_texts(raw, "arguments"),
            s3_endpoint_url=_optional_text(raw, "s3_endpoint_url"),
            s3_region=_optional_text(raw, "s3_region"),
            secrets=_texts(raw, "secrets"),
            s3_profile_name=_optional_text(raw, "s3_profile_name"),
            reading=_optional_object(raw, "reading"),
            script_path=_optional_text(raw, "script_path"),
            modules=_texts(raw, "modules"),
            environment=_variables(raw),
            home_id=_optional_text(raw, "home_id"),
            has_witness=raw.get("has_witness") is True,
            s3_role_arn=_optional_text(raw, "s3_role_arn"),
            s3_role_external_id=_optional_text(raw, "s3_role_external_id"),
            s3_role_session_name=_optional_text(raw, "s3_role_session_name"),
            s3_role_duration_seconds=_optional_number(raw, "s3_role_duration_seconds"),
            gcs_endpoint_url=_optional_text(raw, "gcs_endpoint_url"),
            azure_account_name=_optional_text(raw, "azure_account_name"),
            azure_endpoint_url=_optional_text(raw, "azure_endpoint_url"),
        )


def read_driver_config(path: Path) -> DriverConfig:
    """The configuration in this file.

    Raises:
        MalformedMessageError: the file is missing or malformed.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _malformed(f"{path} cannot be read ({type(error).__name__})") from None
    if not isinstance(raw, dict):
        raise _malformed(f"{path} is not a JSON object")
    config, folder = DriverConfig.from_json(raw), path.absolute().parent
    return replace(config, application=str(folder / config.application), launch_folder=str(folder))


def _text(raw: Mapping[str, object], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise _malformed(f"{name} is not a text")
    return value


def _texts(raw: Mapping[str, object], name: str) -> tuple[str, ...]:
    values = raw.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _malformed(f"{name} is not a list of texts")
    return tuple(values)


def _variables(raw: Mapping[str, object]) -> dict[str, str]:
    found = raw.get("environment", {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _malformed("environment is not an object of texts")
    return dict(found)


def _optional_text(raw: Mapping[str, object], name: str) -> str | None:
    return None if raw.get(name) is None else _text(raw, name)


def _optional_number(raw: Mapping[str, object], name: str) -> int | None:
    value = raw.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _malformed(f"{name} is not a number")


def _optional_object(raw: Mapping[str, object], name: str) -> Mapping[str, Any] | None:
    value = raw.get(name)
    if value is not None and not isinstance(value, dict):
        raise _malformed(f"{name} is not an object")
    return value


def _malformed(reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        "the driver's configuration is malformed",
        reason=reason,
        next_step="Start drivers with `streamstate deploy` or `streamstate resume`; they write this file.",
    )
