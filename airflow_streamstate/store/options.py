"""How to reach S3, GCS and Azure Blob, also from Spark; importable without a client library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass

AZURE_KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY")
AZURE_SAS_VARIABLES = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
GCS_KEY_VARIABLE = "STREAMSTATE_GCS_SERVICE_ACCOUNT_KEY"
"""The key of a service account as JSON, for drivers. A name that obstore itself does not read."""
GCS_KEY_PATH_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    *AZURE_KEY_VARIABLES,
    *AZURE_SAS_VARIABLES,
    "AZURE_CLIENT_SECRET",
    GCS_KEY_VARIABLE,
)
"""The variables with secrets by which a process reaches a store."""
_SCHEMES = {"s3": ("s3://",), "gcs": ("gs://",), "azure": ("az://", "abfs://", "abfss://")}
_PREFIXES = {"s3": ("AWS_",), "gcs": ("GOOGLE_", GCS_KEY_VARIABLE), "azure": ("AZURE_",)}
_CREDENTIALS = {
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_PROFILE"),
        *("AWS_ROLE_", "AWS_WEB_IDENTITY_", "AWS_CONTAINER_"),
    ),
    "gcs": (GCS_KEY_PATH_VARIABLE, GCS_KEY_VARIABLE),
    "azure": (*AZURE_KEY_VARIABLES, *AZURE_SAS_VARIABLES, "AZURE_CLIENT_", "AZURE_TENANT_", "AZURE_FEDERATED_"),
}
"""What does not count, and is not handed over, where the options have credentials of their own."""


@dataclass(frozen=True)
class S3Role:
    """A role of AWS that is assumed for S3, and assumed again before its credentials end.

    Attributes:
        external_id: what the role's trust policy asks for; None for nothing.
        session_name: names the session in AWS's own logs.
        duration_seconds: of one set of credentials; boto3 renews it 900 s before its end, so that twice as much is the
            least.
    """

    arn: str
    external_id: str | None = None
    session_name: str = "streamstate"
    duration_seconds: int = 3600


@dataclass(frozen=True)
class S3Options:
    """What a connection configures for S3; everything else comes from boto3's usual chain.

    Attributes:
        region: else ``AWS_REGION``, else boto3's own chain.
        endpoint_url: another server than AWS; else ``AWS_ENDPOINT_URL_S3`` and its like.
        profile_name: of the machine's AWS files, in place of keys; drivers get it, too (``AWS_PROFILE``).
        session: a ``boto3.Session`` for the clients, for credentials that renew themselves.
        role: the role to assume with these credentials; None if not set.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    region: str | None = None
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile_name: str | None = None
    session: Any = field(default=None, repr=False, compare=False)
    role: S3Role | None = None
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 10.0

    @property
    def has_credentials(self) -> bool:
        """Whether they are here, or named here, and none of the environment count."""
        return bool(self.access_key_id or self.profile_name)


@dataclass(frozen=True)
class ResolvedS3:
    """The result of boto3's chain: where S3 is, and the credentials if they do not expire.

    Attributes:
        endpoint_url: another server than AWS; None for AWS.
        access_key_id, secret_access_key, session_token: lasting credentials; all None where a role or another provider
            renews them, which each process then has to ask itself.
        role: the role to assume with these credentials; None if not set.
        sts_endpoint_url: where it is asked for; "" without a role.
    """

    region: str
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role: S3Role | None = None
    sts_endpoint_url: str = ""


@dataclass(frozen=True)
class GCSOptions:
    """How to reach Google Cloud Storage; without a key by the application default credentials of this machine.

    Attributes:
        endpoint_url: another server than Google's, used without credentials unless a key is given; else
            ``STORAGE_EMULATOR_HOST``.
        service_account_key: the key of a service account as JSON; else ``STREAMSTATE_GCS_SERVICE_ACCOUNT_KEY``.
        key_path: a file with such a key, at the same path for controllers, drivers and executors.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    endpoint_url: str | None = None
    service_account_key: str | None = field(default=None, repr=False)
    key_path: str | None = None
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0

    @property
    def has_credentials(self) -> bool:
        """Whether they are here, and none of the environment count."""
        return bool(self.service_account_key or self.key_path)


@dataclass(frozen=True)
class AzureOptions:
    """How to reach Azure Blob Storage; everything else comes from the environment (``store.azure``).

    Attributes:
        account_name: the storage account; else ``AZURE_STORAGE_ACCOUNT_NAME``.
        account_key: its key.
        sas_token: a shared access signature, in place of the key.
        tenant_id, client_id, client_secret: a service principal, in place of both. Without any of the three ways:
            ``AZURE_STORAGE_ACCOUNT_KEY``, else ``AZURE_STORAGE_SAS_TOKEN``, else azure-identity's default chain.
        endpoint_url: another server than Azure's; else ``AZURE_STORAGE_ENDPOINT``.
        connect_timeout_seconds, read_timeout_seconds: bounds of each request (Law 6).
    """

    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    endpoint_url: str | None = None
    sas_token: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0

    @property
    def has_credentials(self) -> bool:
        """Whether they are here, and none of the environment count."""
        return bool(self.account_key or self.sas_token or self.client_secret)


@dataclass(frozen=True)
class StoreOptions:
    """How to reach the stores of one home, whichever it has: home, checkpoints, mirrors."""

    s3: S3Options = field(default_factory=S3Options)
    gcs: GCSOptions = field(default_factory=GCSOptions)
    azure: AzureOptions = field(default_factory=AzureOptions)

    def credentials(self) -> dict[str, str]:
        """The variables by which a driver has the same credentials; what would count before them is set empty."""
        s3, gcs, azure = self.s3, self.gcs, self.azure
        named = {
            "AWS_ACCESS_KEY_ID": s3.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
            "AWS_SESSION_TOKEN": s3.session_token,
            "AWS_PROFILE": s3.profile_name,
            GCS_KEY_VARIABLE: gcs.service_account_key,
            GCS_KEY_PATH_VARIABLE: gcs.key_path,
            "AZURE_STORAGE_ACCOUNT_KEY": azure.account_key,
            "AZURE_STORAGE_SAS_TOKEN": azure.sas_token,
            "AZURE_TENANT_ID": azure.tenant_id,
            "AZURE_CLIENT_ID": azure.client_id,
            "AZURE_CLIENT_SECRET": azure.client_secret,
        }
        found = {name: value for name, value in named.items() if value}
        others: tuple[str, ...] = (*AZURE_KEY_VARIABLES, *AZURE_SAS_VARIABLES) if azure.has_credentials else ()
        if gcs.key_path:
            others = (*others, GCS_KEY_VARIABLE)
        return {**dict.fromkeys(others, ""), **found}

    def of_environment(self, uris: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of this process by which it reaches stores, for a driver that is to reach them, too.

        Args:
            uris: the stores that the driver has to reach; of other services nothing is handed over.
        """
        kinds = {kind for uri in uris for kind, schemes in _SCHEMES.items() if uri.startswith(schemes)}
        own = {"s3": self.s3.has_credentials, "gcs": self.gcs.has_credentials, "azure": self.azure.has_credentials}
        found = {}
        for kind in kinds:
            credentials = _CREDENTIALS[kind] if own[kind] else ()
            for name, value in environ.items():
                if name.startswith(_PREFIXES[kind]) and not name.startswith(credentials):
                    found[name] = value
        return found

    def secrets(self) -> tuple[str, ...]:
        """The secrets among them, for ``protocol.redaction``."""
        return secrets_in(self.credentials())

    def settings(self) -> dict[str, object]:
        """What a driver has to know besides its credentials, for ``driver.json``; nothing of it is secret."""
        role = self.s3.role
        return {
            "s3_endpoint_url": self.s3.endpoint_url,
            "s3_region": self.s3.region,
            "s3_profile_name": self.s3.profile_name,
            "s3_role_arn": None if role is None else role.arn,
            "s3_role_external_id": None if role is None else role.external_id,
            "s3_role_session_name": None if role is None else role.session_name,
            "s3_role_duration_seconds": None if role is None else role.duration_seconds,
            "gcs_endpoint_url": self.gcs.endpoint_url,
            "azure_account_name": self.azure.account_name,
            "azure_endpoint_url": self.azure.endpoint_url,
        }


def secrets_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets by which this environment reaches stores, each also in the parts that a text may show alone."""
    return tuple(dict.fromkeys(part for name in SECRET_VARIABLES for part in _parts(name, environ.get(name, ""))))


def _parts(name: str, value: str) -> Iterator[str]:
    if not value:
        return
    yield value
    if name in AZURE_SAS_VARIABLES:
        yield from (word[len("sig=") :] for word in value.lstrip("?").split("&") if word.startswith("sig="))
    if name == GCS_KEY_VARIABLE:
        try:
            key = json.loads(value)["private_key"]
        except (ValueError, KeyError, TypeError):
            return
        if isinstance(key, str):
            yield key


# Spark's settings for the same bucket with the same credentials, by Hadoop's connectors: no boto3, no environment.
#
# Everything is set for the one bucket (``fs.s3a.bucket.NAME.…``), so that a script's own settings for other buckets
# stay. Names and classes are those of hadoop-aws 3.4 and newer (AWS SDK 2).

KEYS_PROVIDER = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
SESSION_PROVIDER = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
ROLE_PROVIDER = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"
CHAIN_PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""The SDK's own chain: environment, web identity, profiles, container, instance, as boto3's."""


@dataclass(frozen=True)
class SparkSettings:
    """Spark configuration for one bucket or container.

    Attributes:
        conf: without credentials.
        secret_conf: credentials, for the launch's properties file, which only its owner can read, never for a command
            line. Spark hands them to its executors itself, and hides them in its UI and event log by their names.
    """

    conf: Mapping[str, str]
    secret_conf: Mapping[str, str] = field(repr=False)


@runtime_checkable
class ReachedBySpark(Protocol):
    """A store on a server that Spark reaches by a connector of Hadoop's."""

    def for_spark(self) -> SparkSettings:
        """The settings by which Spark reaches the same bucket.

        Raises:
            InvalidRequestError: the options are wrong, or Spark has no URI for this place.
        """


def s3a_settings(resolved: ResolvedS3, bucket: str) -> SparkSettings:
    """The settings by which S3A reaches this bucket as boto3 does.

    Lasting credentials are handed over. Those of a role would expire in the middle of a run, so the driver and its
    executors ask for their own: by the machine's chain, or where a role is named by S3A, which renews them.
    """
    settings = {"endpoint.region": resolved.region, "input.stream.type": "classic"}
    if resolved.endpoint_url:
        # Most other servers have no host name per bucket; boto3 uses paths, too.
        settings |= {"endpoint": resolved.endpoint_url, "path.style.access": "true"}
    secrets: dict[str, str] = {}
    if resolved.access_key_id and resolved.secret_access_key:
        settings["aws.credentials.provider"] = SESSION_PROVIDER if resolved.session_token else KEYS_PROVIDER
        secrets = {"access.key": resolved.access_key_id, "secret.key": resolved.secret_access_key}
        if resolved.session_token:
            secrets["session.token"] = resolved.session_token
    else:
        settings["aws.credentials.provider"] = CHAIN_PROVIDER
    if resolved.role is not None:
        settings |= _role_settings(resolved, resolved.role, settings["aws.credentials.provider"])
    return SparkSettings(_for_bucket(bucket, settings), _for_bucket(bucket, secrets))


def _role_settings(resolved: ResolvedS3, role: S3Role, provider: str) -> dict[str, str]:
    settings = {
        "aws.credentials.provider": ROLE_PROVIDER,
        "assumed.role.credentials.provider": provider,
        "assumed.role.arn": role.arn,
        "assumed.role.session.name": role.session_name,
        "assumed.role.session.duration": f"{role.duration_seconds}s",
        "assumed.role.sts.endpoint.region": resolved.region,
        "assumed.role.sts.endpoint": resolved.sts_endpoint_url.removeprefix("https://"),
    }
    return {**settings, "assumed.role.external.id": role.external_id} if role.external_id else settings


SERVER_SCHEMES = ("s3://", "gs://", "abfs://", "abfss://")
"""The schemes of the stores that Spark reaches by a connector."""


def s3a_uri(uri: str) -> str:
    """A store's ``s3://`` URI as Spark writes it; any other URI unchanged."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


def _for_bucket(bucket: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def plain_uri(path: str) -> str:
    """A folder's URI in one spelling, whatever the script's: ``s3`` for ``s3a``, no ``file:``."""
    path = re.sub(r"^s3[an]://", "s3://", path.strip())
    path = re.sub(r"^file:/+", "/", path)
    return path.rstrip("/") or "/"


# The packages that a Spark needs to reach checkpoints on S3: hadoop-aws of exactly the Hadoop that it is built on.
#
# Spark itself has no S3A. The AWS SDK bundle that hadoop-aws asks for (600 MB) is left out where the sufficient parts
# of it are known; they were found by running whole streams with them.

S3_PACKAGES = "spark.streamstate.s3.packages"
"""``auto`` (the default), ``pinned`` (the same jars, fetched by us and compared with pinned digests), ``none`` where
Spark has its own connector, or Maven coordinates to use instead."""
PINNED_HADOOP = "3.5.0"
EXCLUDES = "spark.jars.excludes"
_HADOOP_JAR = re.compile(r"hadoop-client-api-([0-9]+(?:\.[0-9]+)+)\.jar")
_CONNECTOR_JAR = re.compile(r"(.*/)?hadoop-(aws|cloud-storage)-[^/]*\.jar")
_LIGHT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "3.5.0": (
        (
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "software.amazon.awssdk:s3-transfer-manager:2.35.4",
            "software.amazon.awssdk:sts:2.35.4",
        ),
        (
            "software.amazon.awssdk:bundle",
            "org.wildfly.openssl:wildfly-openssl",
            # Spark has these itself, and two versions of them in one driver conflict.
            "io.netty:*",
            "org.slf4j:slf4j-api",
            "commons-codec:commons-codec",
            "commons-logging:commons-logging",
            "org.apache.httpcomponents:*",
        ),
    ),
}
"""By Hadoop version: packages and excludes that replace hadoop-aws with its bundle."""


@dataclass(frozen=True)
class S3Connector:
    """The packages to add.

    Attributes:
        packages: Maven coordinates; empty if none are needed.
        excludes: ``group:name`` of their dependencies that are left out.
        reason: why these, as text.
        is_pinned: jars of ``launch.spark_home`` in their place.
    """

    packages: tuple[str, ...]
    excludes: tuple[str, ...]
    reason: str
    is_pinned: bool = False


def s3_connector(
    spark_home: Path | None, conf: Mapping[str, str], packages: Sequence[str] = (), jars: Sequence[str] = ()
) -> S3Connector:
    """The packages that this Spark needs in addition to the user's own ``packages`` and ``jars``.

    Args:
        spark_home: the installation; None if unknown.
        conf: the configuration of the driver.

    Raises:
        InvalidRequestError: the Hadoop that it is built on is unknown.
    """
    asked = conf.get(S3_PACKAGES, "auto").strip()
    if asked == "none":
        return S3Connector((), (), f"{S3_PACKAGES} reports none")
    if asked not in ("auto", "", "pinned"):
        listed = tuple(part.strip() for part in asked.split(",") if part.strip())
        return S3Connector(listed, (), f"{S3_PACKAGES} names them")
    if any(":hadoop-aws:" in f"{package}:" for package in packages) or any(map(_CONNECTOR_JAR.fullmatch, jars)):
        return S3Connector((), (), "the packages or jars of the deployment have it")
    names = sorted(path.name for path in (spark_home / "jars").glob("hadoop-*.jar")) if spark_home else []
    if any(map(_CONNECTOR_JAR.fullmatch, names)):
        return S3Connector((), (), f"the Spark in {spark_home} has it")
    version = next((found[1] for found in map(_HADOOP_JAR.fullmatch, names) if found), None)
    if version is None:
        raise InvalidRequestError(
            "the Hadoop that this Spark is built on is unknown, and so is what it needs to reach S3",
            spark_home=str(spark_home) if spark_home else "not known",
            next_step=f"Set {S3_PACKAGES} to none if this Spark reaches S3 by itself, else to coordinates of"
            " hadoop-aws.",
        )
    if asked == "pinned" and version != PINNED_HADOOP:
        raise InvalidRequestError(
            "the jars by which this Spark reaches S3 are not pinned",
            hadoop=version,
            pinned=PINNED_HADOOP,
            next_step=f"Leave {S3_PACKAGES} out, or give the jars by --jars, which the home pins.",
        )
    if asked == "pinned":
        return S3Connector((), (), f"Hadoop {version} in {spark_home}, by pinned digests", is_pinned=True)
    if version in _LIGHT:
        return S3Connector(*_LIGHT[version], f"Hadoop {version} in {spark_home}")
    return S3Connector((f"org.apache.hadoop:hadoop-aws:{version}",), (), f"Hadoop {version} in {spark_home}, untried")


# Spark reads a properties file with ``java.util.Properties`` and then cuts blanks off both ends of every value
# (newlines stay); everything else survives these escapes.

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def format_properties(values: Mapping[str, str]) -> bytes:
    """The values as a properties file: ASCII only, one line each, sorted by key."""
    lines = (f"{_escape(key, '=:#! ')}={_escape(value, '')}" for key, value in sorted(values.items()))
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def survives(value: str) -> bool:
    """Whether Spark reads back the same value: it cuts blanks and other control characters off both ends."""
    return value == value.strip("".join(chr(code) for code in range(33) if chr(code) not in "\r\n"))


def _escape(text: str, also: str) -> str:
    # A leading blank would count as the space between key and value.
    return "".join(_escape_character(char, also + (" " if index == 0 else "")) for index, char in enumerate(text))


def _escape_character(char: str, also: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char in also:
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    # Java's characters are UTF-16 code units.
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
