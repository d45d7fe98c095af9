"""The clients of launchers by Airflow's own hooks and connection types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_streamstate.errors import InvalidRequestError

_SSH_SECONDS = 5
_UNCHECKED = {"no_host_key_check", "ignore_hostkey_verification"}


def aws_session(conn_id: str) -> Any:
    """A ``boto3.Session`` of a connection of the type aws, with its role, profile and region.

    Raises:
        InvalidRequestError: the amazon provider or the connection is not there, or the connection is damaged.
    """
    with _refused(conn_id, "amazon", "aws"):
        from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

        AwsGenericHook.get_connection(conn_id)  # without it, the hook goes on with boto3's own chain
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

    The host's key has to be known, unless the connection itself says ``no_host_key_check``.

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
    hook.conn_retry_attempts = 1  # what is to be repeated, the caller repeats
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
