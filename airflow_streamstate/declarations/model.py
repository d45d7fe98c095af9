"""What a file says of a stream. The JSON schema that editors take is made from these classes.

Names are those of the shell's options and the operators' parameters; a field that is not given has their default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from airflow_streamstate.declarations.term_parts import Texts, part_of, terms_in
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.records import StateStoreName
from airflow_streamstate.protocol.restarts import OnFailure
from airflow_streamstate.protocol.retention import MAX_AGE_SECONDS, RetentionPolicy
from airflow_streamstate.protocol.terms.start import StartMode
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms
from airflow_streamstate.protocol.terms.version import OnQueryFailure

_TOLD_BY_PLACE = ("names",)
DesiredState = Literal["running", "stopped"]


class _Part(BaseModel):
    """Unknown names are refused; a value never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LauncherPart(_Part):
    """What starts the drivers, where that is not the machine of the caller."""

    name: str = Field(description="kubernetes, yarn, ssh, emr-serverless, emr-eks, or another that is installed")
    options: dict[str, Any] = Field(default={}, description="options of the launcher; none of them is a secret")
    conn_id: str = Field(default="", description="the Airflow connection by which it reaches its cluster")


class StatePart(_Part):
    """How Spark keeps the state. A change is an upgrade that writes the state anew."""

    partitions: int | None = Field(default=None, ge=1, description="number of partitions of each stateful operator")
    store: StateStoreName | None = Field(default=None, description="the state store")
    checkpoint_format: int | None = Field(default=None, ge=1, le=2, description="Spark's state checkpoint format")


if TYPE_CHECKING:

    class _UpgradeTermsPart(_Part):
        """The terms of an upgrade; ``versions.upgrade_terms`` has their values."""

else:
    _UpgradeTermsPart = part_of(UpgradeTerms, _Part)


class UpgradePart(_UpgradeTermsPart):
    """How a changed version takes over."""

    auto_migrate: bool = Field(default=False, description="migrate state without a function where that is safe")
    timeout_seconds: float = Field(default=3600.0, gt=0, description="how long `apply` waits for its end")

    @model_validator(mode="after")
    def _has_no_contradiction(self) -> UpgradePart:
        try:
            terms_in(UpgradeTerms, self)
        except InvalidRequestError as error:
            raise _refused("upgrade", error) from None
        return self


class RestartPart(_Part):
    """What watchers do when a driver of the stream fails."""

    on_failure: OnFailure = "nothing"
    initial_backoff_seconds: float | None = None
    backoff_factor: float | None = None
    max_backoff_seconds: float | None = None
    max_restarts: int | None = None
    restart_window_seconds: float | None = None
    healthy_for_seconds: float | None = None
    restore_lost_checkpoint: bool | None = None
    hung_after_seconds: float | None = Field(
        default=None,
        description="a driver that lives and is silent for so long is ended and restarted; 600 if left out",
    )


class AlertsPart(_Part):
    """When people are told of the stream; what is left out has the usual value."""

    driver_silent_seconds: float | None = Field(
        default=None, description="a driver lives and has given no sign of life for so long; 120 if left out"
    )
    no_commit_seconds: float | None = Field(
        default=None, description="a query with input left has committed nothing for so long; 900 if left out"
    )
    lag_over: int | None = Field(default=None, description="a query is further behind, in the unit of its source")
    lag_growing_seconds: float | None = Field(
        default=None, description="a query has fallen further behind over so long; 600 if left out"
    )
    watermark_behind_seconds: float | None = Field(default=None, description="a watermark is further behind the clock")
    state_rows_over: int | None = Field(default=None, description="the state of a query has more rows")
    state_memory_bytes_over: int | None = Field(
        default=None, description="the state of a query takes more memory, as Spark reports it"
    )
    state_growing_seconds: float | None = Field(
        default=None,
        description="over so long the state of a query got more rows than the query read; 3600 if left out",
    )
    snapshot_age_seconds: float | None = Field(
        default=None, description="the newest snapshot is older; three times `snapshots.every_seconds` if left out"
    )
    off: Texts = Field(default=(), description="rules that are not evaluated")

    @model_validator(mode="after")
    def _can_be_evaluated(self) -> AlertsPart:
        try:
            AlertRules().changed(self.model_dump(exclude_none=True))
        except InvalidRequestError as error:
            raise _refused("alert_rules", error) from None
        return self


def _refused(error_type: str, error: StreamStateError) -> PydanticCustomError:
    return PydanticCustomError(error_type, "{text}", {"text": reason_of(error)})


def reason_of(error: StreamStateError) -> str:
    """Why a value is refused, in one lower-case sentence: the facts, and what to write instead."""
    facts = " ".join(
        str(fact) for name, fact in error.context.items() if fact not in (None, "") and name not in _TOLD_BY_PLACE
    )
    next_step = f"{error.next_step[:1].lower()}{error.next_step[1:]}"
    return f"{error.message}{f' ({facts})' if facts else ''}{f'; {next_step}' if next_step else ''}"


class SettingsPart(_Part):
    """Settings of the agent in the driver."""

    command_poll_seconds: float | None = None
    heartbeat_seconds: float | None = None
    lost_after_seconds: float | None = None
    exit_grace_seconds: float | None = None
    snapshot_ttl_seconds: float | None = None
    snapshot_request_timeout_seconds: float | None = None
    clock_skew_seconds: float | None = None
    fetch_batch_bytes: int | None = None
    fetch_timeout_seconds: float | None = None
    keep_running: bool = False
    commit_offsets_to_group: str = Field(default="", description="a consumer group of Kafka, for Kafka's own tools")


class SnapshotsPart(_Part):
    """Snapshots while the stream runs."""

    every_seconds: float | None = Field(
        default=None, description="how often the driver takes one; none by itself if left out"
    )
    place: str = Field(default="", description="the URI where they are kept; `none` for no snapshots while it runs")


class RetentionPart(_Part):
    """Which snapshots stay. The others go when the stream is pruned, unless something needs them."""

    keep: int | None = Field(default=None, ge=0, description="so many of the newest snapshots stay at any age")
    older_than_seconds: float | None = Field(
        default=None, ge=0, le=MAX_AGE_SECONDS, description="what was taken or read within so many seconds stays"
    )
    at_mirrors: bool = Field(
        default=False, description="copies at its mirrors that newer snapshots have replaced go, too"
    )

    @model_validator(mode="after")
    def _can_be_recorded(self) -> RetentionPart:
        try:
            RetentionPolicy.of(self.model_dump())
        except InvalidRequestError as error:
            raise _refused("retention", error) from None
        return self


class StreamDeclaration(_Part):
    """All of one stream."""

    id: str = Field(description="the stream: 1 to 63 characters of a-z, 0-9 and '-'")
    application: str = Field(description="the PySpark script; a path below the folder of the file, or an absolute one")
    desired_state: DesiredState = Field(
        default="running", description="`stopped`: a stream that runs is stopped, state kept"
    )
    arguments: Texts = Field(default=(), description="of the script; env://NAME stands for a secret")
    master: str | None = Field(default=None, description="Spark's master; the launcher's own, or local[*], if left out")
    spark_conn_id: str | None = Field(default=None, description="the Airflow connection whose spark-submit launches it")
    launcher: LauncherPart | None = Field(default=None, description="what starts the drivers elsewhere")
    conf: dict[str, str] = Field(default={}, description="Spark's configuration; env://NAME stands for a secret")
    environment: dict[str, str] = Field(
        default={}, description="variables of the driver; env://NAME stands for a secret"
    )
    py_files: Texts = Field(default=(), description="modules, zips, eggs, wheels or folders, for --py-files")
    files: Texts = Field(default=(), description="files for --files")
    jars: Texts = Field(default=(), description="paths or URIs of jars")
    packages: Texts = Field(default=(), description="Maven coordinates")
    modules: Texts | None = Field(default=None, description="globs of what is pinned of the script's folder")
    working_folder: str | None = Field(default=None, description="absolute folder in which its drivers run")
    attaches: bool = Field(default=False, description="the script calls attach() itself")
    version_label: str = Field(default="", description="your own name of this version")
    on_query_failure: OnQueryFailure = Field(default="script", description="what a failed query does to the others")
    start: StartMode | None = Field(default=None, description="how a deployment starts that is no upgrade")
    allow_new_queries: Texts = Field(default=(), description="queries that may start with nothing")
    rename_queries: dict[str, str] = Field(
        default_factory=dict, description="by a query's name in the snapshot, the name that the script gives it now"
    )
    move_sources: dict[str, str] = Field(
        default_factory=dict, description="by the folder of a file source at the snapshot, where the same files are now"
    )
    state: StatePart = Field(default=StatePart(), description="how Spark keeps the state")
    upgrade: UpgradePart = Field(default=UpgradePart(), description="how a changed version takes over")
    restart: RestartPart = Field(default=RestartPart(), description="what watchers do when a driver fails")
    alerts: AlertsPart = Field(default=AlertsPart(), description="when people are told of the stream")
    settings: SettingsPart = Field(default=SettingsPart(), description="of the agent in the driver")
    snapshots: SnapshotsPart = Field(default=SnapshotsPart(), description="while the stream runs")
    mirrors: Texts = Field(default=(), description="URIs of places that snapshots are copied to")
    retention: RetentionPart | None = Field(
        default=None, description="which snapshots stay when it is pruned, by watchers too"
    )
    owner: str = Field(default="", description="a person or team; alerts, `status` and the page name it")
    labels: dict[str, str] = Field(default={}, description="for --canary, `list --label`, the page and metrics")
    depends_on: Texts = Field(default=(), description="streams of this folder that are applied before")

    @field_validator("owner", "labels")
    @classmethod
    def _can_be_recorded(cls, value: Any, info: ValidationInfo) -> Any:
        try:
            Ownership().changed(**{str(info.field_name): value})
        except InvalidRequestError as error:
            raise _refused("ownership", error) from None
        return value

    @field_validator("retention")
    @classmethod
    def _has_the_mirrors(cls, value: RetentionPart | None, info: ValidationInfo) -> RetentionPart | None:
        if value is not None and value.at_mirrors and info.data.get("mirrors") == ():
            raise PydanticCustomError("retention", "at_mirrors is for a stream with mirrors; give mirrors, too")
        return value
