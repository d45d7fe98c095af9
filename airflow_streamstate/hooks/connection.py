"""Airflow connections as the configuration of a home, of launchers, of ``spark-submit`` and of secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Variable
from airflow.sdk.log import mask_secret

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.protocol.redaction import EXTRA, Reference
from airflow_streamstate.protocol.signing import SigningKeys, own_signing_keys
from airflow_streamstate.store.options import AzureOptions, GCSOptions, S3Options, S3Role, StoreOptions

if TYPE_CHECKING:
    from airflow_streamstate.controller.drivers.secret_lookup import LookUp
    from airflow_streamstate.controller.home import HomeConfig


CONNECTION_TYPE = "streamstate"
SIGNING_KEY = "signing_secret_key"
_SHOWN_NAMES = ("signing_key", "signing_keys")
ROLE_SECONDS = range(1800, 43201)
_PRINCIPAL = ("azure_tenant_id", "azure_client_id", "azure_client_secret")
# The amazon provider's ``assume_role_kwargs`` as fields of a role; others are refused explicitly.
_OF_AMAZON = {"ExternalId": "external_id", "RoleSessionName": "session_name", "DurationSeconds": "duration_seconds"}


class ConnectionLike(Protocol):
    """The fields of an Airflow connection that are read here."""

    conn_id: Any
    login: Any
    password: Any


@dataclass(frozen=True)
class Fetched:
    """A connection as Airflow gave it, with its extra as a JSON object."""

    connection: ConnectionLike
    extra: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        """A field of the extra; None if it is missing or empty."""
        return _text(self.extra.get(name))


def aws_conn_id_of(fetched: Fetched) -> str | None:
    """The AWS connection that a ``streamstate`` connection names, if any."""
    return fetched.text("aws_conn_id")


def home_config(fetched: Fetched, aws: Fetched | None = None, environ: Mapping[str, str] = os.environ) -> HomeConfig:
    """The home that a connection names.

    Args:
        fetched: the ``streamstate`` connection: the access key of S3 and its secret in login and password, all other
            fields in its extra (``provider_info``).
        aws: the connection that ``aws_conn_id`` names; fields of the first one take precedence.
        environ: of this process: it may have the signing key that the connection lacks.

    Raises:
        InvalidRequestError: it names no home, has half a credential or two of them, a signing key that is too short, or
            its ``allowed`` is malformed.
    """
    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.controller.home import HomeConfig

    home_uri = fetched.text("home_uri")
    if home_uri is None:
        raise _mistake(
            fetched,
            "this connection names no home",
            "Set home_uri in its extra: s3://…, gs://…, abfss://…, or a folder that the workers share.",
        )
    return HomeConfig(
        home_uri=home_uri,
        checkpoints_uri=fetched.text("checkpoints_uri"),
        options=StoreOptions(_s3_options(fetched, aws), _gcs_options(fetched), _azure_options(fetched)),
        work_dir=fetched.text("work_dir"),
        allowed=Allowed.parse(
            fetched.extra.get("allowed"), f"the field allowed of the connection {fetched.connection.conn_id}"
        ),
        keys=_signing_keys(fetched, environ),
    )


def _signing_keys(fetched: Fetched, environ: Mapping[str, str]) -> SigningKeys | None:
    where = f"{SIGNING_KEY} of the connection {fetched.connection.conn_id}"
    for name in _SHOWN_NAMES:
        if name in fetched.extra:
            raise _mistake(
                fetched,
                "this connection has its signing key in a field that Airflow shows to people",
                f"Make a new key, and put it into {SIGNING_KEY}: Airflow hides fields named secret.",
                field=name,
            )
    return SigningKeys.parse(fetched.text(SIGNING_KEY), where) or own_signing_keys(environ)


def _s3_options(fetched: Fetched, aws: Fetched | None) -> S3Options:
    access_key, secret_key, session_token = _credentials(fetched)
    profile_name, role = None, _own_role(fetched)
    region, endpoint_url = fetched.text("region"), fetched.text("endpoint_url")
    if aws is not None:
        role = role or _role_of_aws(aws)
        if access_key is None:
            access_key, secret_key, session_token = _credentials(aws)
            profile_name = None if access_key else aws.text("profile_name")
        region = region or aws.text("region_name")
        endpoint_url = endpoint_url or _endpoint_of_aws(aws)
    return S3Options(
        region=region,
        endpoint_url=endpoint_url,
        access_key_id=access_key,
        secret_access_key=secret_key,
        session_token=session_token,
        profile_name=profile_name,
        role=role,
    )


def _gcs_options(fetched: Fetched) -> GCSOptions:
    key, key_path = fetched.text("gcs_service_account_key"), fetched.text("gcs_key_path")
    if key and key_path:
        raise _two_credentials(fetched, "gcs_service_account_key, gcs_key_path")
    return GCSOptions(fetched.text("gcs_endpoint_url"), service_account_key=key, key_path=key_path)


def _azure_options(fetched: Fetched) -> AzureOptions:
    said = {name: fetched.text(name) for name in _PRINCIPAL}
    missing = [name for name, value in said.items() if value is None]
    if missing and len(missing) < len(_PRINCIPAL):
        raise _mistake(
            fetched,
            "this connection has a part of a service principal",
            "Fill in all three, or none to use azure-identity's own chain of credentials.",
            missing=", ".join(missing),
        )
    ways = [name for name in ("azure_secret_key", "azure_sas_token", "azure_client_secret") if fetched.text(name)]
    if len(ways) > 1:
        raise _two_credentials(fetched, ", ".join(ways))
    return AzureOptions(
        fetched.text("azure_account"),
        fetched.text("azure_secret_key"),
        fetched.text("azure_endpoint_url"),
        sas_token=fetched.text("azure_sas_token"),
        tenant_id=said["azure_tenant_id"],
        client_id=said["azure_client_id"],
        client_secret=said["azure_client_secret"],
    )


def _own_role(fetched: Fetched) -> S3Role | None:
    arn = fetched.text("role_arn")
    others = {name: fetched.text(f"role_{name}") for name in ("external_id", "session_name", "duration_seconds")}
    if arn is None and any(others.values()):
        raise _mistake(
            fetched,
            "this connection describes a role and does not name it",
            "Fill in role_arn, or leave the other fields of the role empty.",
            fields=", ".join(f"role_{name}" for name, value in others.items() if value),
        )
    return None if arn is None else _role(fetched, arn, others)


def _role_of_aws(aws: Fetched) -> S3Role | None:
    """The role of an AWS connection, whose fields are those of the amazon provider."""
    arn, said = aws.text("role_arn"), aws.extra.get("assume_role_kwargs") or {}
    if arn is None:
        return None
    unknown = sorted(set(said) - set(_OF_AMAZON)) if isinstance(said, Mapping) else ["assume_role_kwargs"]
    if aws.text("assume_role_method") not in (None, "assume_role"):
        unknown.append("assume_role_method")
    if unknown:
        raise _mistake(
            aws,
            "this AWS connection asks for something that is not supported for a home",
            "Name a profile instead (profile_name): one of ~/.aws/config may assume the role, and renews it for workers"
            " and drivers alike. Or use no aws_conn_id, where the machine has the role.",
            fields=", ".join(unknown),
        )
    return _role(aws, arn, {ours: _text(said.get(theirs)) for theirs, ours in _OF_AMAZON.items()})


def _role(fetched: Fetched, arn: str, others: Mapping[str, str | None]) -> S3Role:
    role = S3Role(arn, others["external_id"])
    seconds = others["duration_seconds"]
    if seconds is not None and not (seconds.isdecimal() and int(seconds) in ROLE_SECONDS):
        raise _mistake(
            fetched,
            "this is no duration for the credentials of a role",
            "Give whole seconds; they are renewed 900 s before their end, so that twice as much is the least.",
            given=seconds,
            least=ROLE_SECONDS.start,
            most=ROLE_SECONDS.stop - 1,
        )
    return replace(
        role,
        session_name=others["session_name"] or role.session_name,
        duration_seconds=role.duration_seconds if seconds is None else int(seconds),
    )


def _credentials(fetched: Fetched) -> tuple[str | None, str | None, str | None]:
    access_key = _text(fetched.connection.login) or fetched.text("aws_access_key_id")
    secret_key = _text(fetched.connection.password) or fetched.text("aws_secret_access_key")
    if (access_key is None) != (secret_key is None):
        raise _mistake(
            fetched,
            "this connection has half a credential",
            "Fill in both, or neither to use boto3's own chain of credentials.",
            missing="access key id (login)" if access_key is None else "secret access key (password)",
        )
    return access_key, secret_key, fetched.text("aws_session_token")


def _endpoint_of_aws(aws: Fetched) -> str | None:
    services = aws.extra.get("service_config")
    of_s3 = services.get("s3") if isinstance(services, Mapping) else None
    found = of_s3.get("endpoint_url") if isinstance(of_s3, Mapping) else None
    return _text(found) or aws.text("endpoint_url")


def _two_credentials(fetched: Fetched, fields: str) -> InvalidRequestError:
    return _mistake(fetched, "this connection has two credentials for one service", "Keep one of them.", fields=fields)


def _mistake(fetched: Fetched, message: str, next_step: str, **facts: object) -> InvalidRequestError:
    return InvalidRequestError(message, conn_id=str(fetched.connection.conn_id), **facts, next_step=next_step)


def _text(value: object) -> str | None:
    text = str(value).strip() if value is not None else ""
    return text or None


# Secrets of Airflow: references to its connections and variables are looked up, and what is secret is masked.


def airflow_secrets(environ: Mapping[str, str]) -> LookUp:
    """A look-up of every kind of reference, which masks found secrets in Airflow's logs; ``environ`` is for ``env://``."""

    def look_up(reference: Reference) -> str:
        value = _value(reference, environ)
        if not value:
            raise InvalidRequestError(
                "there is no such secret in Airflow",
                reference=reference.text,
                next_step="Create it, or correct the reference.",
            )
        if reference.is_secret:
            mask_secret(value)
        return value

    return look_up


def mask_credentials(config: HomeConfig) -> None:
    """Mask the secrets of a home in Airflow's logs, each alone: Airflow masks a connection's extra as a whole."""
    for secret in (*config.options.secrets(), *(() if config.keys is None else config.keys.texts)):
        mask_secret(secret)


def _value(reference: Reference, environ: Mapping[str, str]) -> str:
    from airflow_streamstate.controller.drivers.secret_lookup import from_environment

    if reference.source == "env":
        return from_environment(reference, environ)
    try:
        if reference.source == "airflow-variable":
            found = Variable.get(reference.key, default=None)
            return "" if found is None else str(found)
        return _part(BaseHook.get_connection(reference.key), reference.part)
    except AirflowNotFoundException:
        return ""
    except Exception as error:  # a backend may raise anything, with the secret in its message
        raise UnavailableError(
            "Airflow could not look up a secret",
            reference=reference.text,
            error=type(error).__name__,
            next_step="Check Airflow's secrets backend, then try again.",
        ) from None


def _part(connection: Any, part: str) -> str:
    if not part.startswith(EXTRA):
        value = getattr(connection, part)
        return "" if value is None else str(value)
    name = part.removeprefix(EXTRA)
    extra: Any = connection.extra_dejson
    if name in extra:
        extra = extra[name]
    else:
        for step in name.split("."):
            extra = extra.get(step) if isinstance(extra, Mapping) else None
    return "" if extra is None or isinstance(extra, Mapping | list) else str(extra)


# An Airflow Spark connection as the beginning of a ``spark-submit`` command, built by the apache-spark provider.
#
# Only the command of the provider's hook is used (master, queue, namespace, keytab …): its ``submit`` blocks on a
# pipe, so that a driver would end with the Airflow worker. ``_build_spark_submit_command``, ``_connection`` and
# ``_env`` are private, the same from 4.11 to 6.3, and held by a contract test. The provider is imported on first use.

_APPLICATION = "<application>"
_DEPLOY_MODE = "--deploy-mode"


@dataclass(frozen=True)
class SparkSubmission:
    """How a Spark connection wants drivers to be started.

    Attributes:
        master: Spark's master URL.
        spark_submit: the command with its first options; it names the master already.
        environment: variables in addition to the launcher's own.
    """

    master: str
    spark_submit: tuple[str, ...]
    environment: Mapping[str, str]


def spark_submission(spark_conn_id: str) -> SparkSubmission:
    """The submission that a connection describes.

    Raises:
        InvalidRequestError: the connection or the provider is not there, or it asks for cluster mode.
    """
    hook = _provider_hook(spark_conn_id)
    if hook._connection["deploy_mode"] == "cluster":
        raise InvalidRequestError(
            "this Spark connection asks for cluster mode, and its drivers run on this machine",
            spark_conn_id=spark_conn_id,
            next_step="Use the deploy mode client; for drivers elsewhere give a launcher instead.",
        )
    command = [str(word) for word in hook._build_spark_submit_command(_APPLICATION)]
    if command[-1] != _APPLICATION or command[1:2] != ["--master"]:
        raise InvalidRequestError(
            "the installed apache-spark provider builds an unknown form of spark-submit command",
            spark_conn_id=spark_conn_id,
            next_step="Use apache-airflow-providers-apache-spark from 5.0 to below 7, or no spark_conn_id.",
        )
    return SparkSubmission(
        master=str(hook._connection["master"]),
        spark_submit=_without_option(command[:-1], _DEPLOY_MODE),
        environment={str(name): str(value) for name, value in (hook._env or {}).items()},
    )


def _provider_hook(spark_conn_id: str) -> Any:
    _need_connection(spark_conn_id)
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise InvalidRequestError(
            "a Spark connection needs the apache-spark provider, which is not installed here",
            spark_conn_id=spark_conn_id,
            missing=error.name or str(error),
            next_step="Install airflow-streamstate[spark].",
        ) from error
    try:
        return SparkSubmitHook(conn_id=spark_conn_id, name="")  # a name would override the script's own
    except (ValueError, RuntimeError, NameError) as error:  # NameError: a k8s master without the cncf provider
        raise InvalidRequestError(
            "the apache-spark provider refuses this connection",
            spark_conn_id=spark_conn_id,
            reason=str(error),
            next_step="Correct the connection.",
        ) from error


def _need_connection(spark_conn_id: str) -> None:
    # For a missing connection the provider would use `--master yarn`, with only a log line.
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

    try:
        connection = BaseHook.get_connection(spark_conn_id)
    except AirflowNotFoundException:
        connection = None
    if connection is None or not (connection.host or connection.conn_type != "spark"):
        raise InvalidRequestError(
            "there is no such Spark connection" if connection is None else "this Spark connection names no master",
            spark_conn_id=spark_conn_id,
            next_step="Create a connection of type spark whose host is the master, e.g. spark://HOST:7077 or local[2].",
        )


def _without_option(words: list[str], option: str) -> tuple[str, ...]:
    # The launcher itself sets client mode.
    at = words.index(option) if option in words else None
    return tuple(words if at is None else words[:at] + words[at + 2 :])


# The clients of launchers by Airflow's own hooks and connection types.

_SSH_SECONDS = 5
_UNCHECKED = {"no_host_key_check", "ignore_hostkey_verification"}


def aws_session(conn_id: str) -> Any:
    """A ``boto3.Session`` of a connection of the type aws, with its role, profile and region.

    Raises:
        InvalidRequestError: the amazon provider or the connection is not there, or the connection is damaged.
    """
    with _refused(conn_id, "amazon", "aws"):
        from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

        AwsGenericHook.get_connection(conn_id)  # without it, the hook continues with boto3's own chain
        return AwsGenericHook(aws_conn_id=conn_id, client_type="s3").get_session()


def kubernetes_client(conn_id: str) -> Any:
    """A ``kubernetes.client.ApiClient`` of a connection of the type kubernetes: in-cluster, kubeconfig or token.

    Raises:
        InvalidRequestError: the cncf provider or the connection is not there, or the connection is damaged.
    """
    with _refused(conn_id, "cncf-kubernetes", "kubernetes"):
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

        KubernetesHook.get_connection(conn_id)
        return KubernetesHook(conn_id=conn_id).get_conn()


def ssh_client(conn_id: str) -> Any:
    """A connected ``paramiko.SSHClient`` of a connection of the type ssh; raises its errors.

    The host's key has to be known, unless the connection itself sets ``no_host_key_check``.

    Raises:
        InvalidRequestError: the ssh provider or the connection is not there, or the connection is damaged.
    """
    with _refused(conn_id, "ssh", "ssh"):
        from airflow.providers.ssh.hooks.ssh import SSHHook

        said = SSHHook.get_connection(conn_id).extra_dejson
        hook = SSHHook(
            ssh_conn_id=conn_id,
            conn_timeout=_SSH_SECONDS,
            banner_timeout=_SSH_SECONDS,
            auth_timeout=_SSH_SECONDS,
        )
    hook.conn_retry_attempts = 1  # the caller repeats what has to be repeated
    if not said.keys() & _UNCHECKED:
        hook.no_host_key_check = False
    return hook.get_conn()


CONNECT: Mapping[str, Callable[[str], Any]] = {
    "kubernetes": kubernetes_client,
    "ssh": ssh_client,
    "emr-serverless": aws_session,
    "emr-eks": aws_session,
}
"""What gives a launcher the client of a connection, by the launcher's name."""


@contextmanager
def _refused(conn_id: str, provider: str, kind: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidRequestError(
            "Airflow's provider for this connection is not installed, or lacks a package",
            conn_id=conn_id,
            missing=str(error.name or error),
            next_step=f"Install it: pip install apache-airflow-providers-{provider}.",
        ) from None
    except Exception as error:  # of whatever kind: hooks raise those of the clients that they wrap
        raise InvalidRequestError(
            "the connection cannot be used",
            conn_id=conn_id,
            reason=" ".join(str(error).split())[:300],
            next_step=f"Create or correct it in Airflow: type {kind}.",
        ) from None
