"""Names that the oldest supported Airflow (3.1) has in other modules than the newest."""

from __future__ import annotations

from typing import Any

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag

try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

try:
    from airflow.sdk.exceptions import TaskDeferralError
except ImportError:
    from airflow.exceptions import TaskDeferralError

__all__ = ["DagBag", "DagSerialization", "TaskDeferralError", "found_hook"]


def found_hook(connection_type: str) -> Any:
    """What Airflow knows of the hook of a connection type, by the providers that it has discovered."""
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as Manager
    except ImportError:
        from airflow.providers_manager import ProvidersManager as Manager
    return Manager().hooks[connection_type]
