"""Drivers in pods of Kubernetes: a pod of our own, with ``spark-submit`` in client mode inside."""

from airflow_streamstate.launch.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
