"""Base of the operators that change what a stream runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.rendered import (
    launcher_choice,
    one_of,
    optional_path,
    optional_text,
    optional_whole_number,
    text_mapping,
    texts,
    yes_or_no,
)
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.protocol.records import STATE_STORES
from airflow_streamstate.protocol.terms.version import ON_QUERY_FAILURE

if TYPE_CHECKING:
    from airflow_streamstate.controller.request.requests import ChangeRequest


class ChangingOperator(MasksSecrets, StreamStateOperator):
    """Base of ``PlanUpgradeOperator`` and ``UpgradeStreamOperator``, which document its parameters."""

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "application",
        "arguments",
        "conf",
        "environment",
        "master",
        "spark_conn_id",
        "launcher",
        "launcher_options",
        "launcher_conn_id",
        "pod_template",
        "py_files",
        "modules",
        "working_folder",
        "files",
        "packages",
        "jars",
        "allow_new_queries",
        "rename_queries",
        "move_sources",
        "accept_lost_input",
        "allow_state_loss",
        "allow_literal_secrets",
        "version_label",
        "on_query_failure",
        "partitions",
        "state_store",
        "checkpoint_format",
        "migration",
        "auto_migrate",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "arguments": "json",
        "conf": "json",
        "environment": "json",
        "py_files": "json",
        "modules": "json",
        "files": "json",
        "packages": "json",
        "jars": "json",
        "allow_new_queries": "json",
        "rename_queries": "json",
        "move_sources": "json",
        "accept_lost_input": "json",
        "launcher_options": "json",
        "pod_template": "yaml",
    }

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "on_query_failure": ON_QUERY_FAILURE,
        "state_store": STATE_STORES,
    }

    def __init__(
        self,
        *,
        application: str | Path | None = None,
        arguments: Sequence[str] | str | None = None,
        conf: Mapping[str, str] | str | None = None,
        environment: Mapping[str, str] | str | None = None,
        master: str | None = None,
        spark_conn_id: str | None = None,
        py_files: Sequence[str] | str | None = None,
        files: Sequence[str] | str | None = None,
        packages: Sequence[str] | str | None = None,
        jars: Sequence[str] | str | None = None,
        allow_new_queries: Sequence[str] | str = (),
        rename_queries: Mapping[str, str] | str | None = None,
        move_sources: Mapping[str, str] | str | None = None,
        accept_lost_input: Sequence[str] | str = (),
        allow_state_loss: bool | str = False,
        allow_literal_secrets: bool | str = False,
        version_label: str | None = None,
        on_query_failure: str | None = None,
        modules: Sequence[str] | str | None = None,
        working_folder: str | Path | None = None,
        partitions: int | str | None = None,
        state_store: str | None = None,
        checkpoint_format: int | str | None = None,
        migration: str | Path | None = None,
        auto_migrate: bool | str = False,
        launcher: str | None = None,
        launcher_options: Mapping[str, Any] | str | None = None,
        launcher_conn_id: str | None = None,
        pod_template: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.launcher = launcher
        self.launcher_options = launcher_options
        self.launcher_conn_id = launcher_conn_id
        self.pod_template = pod_template
        self.application = None if application is None else str(application)
        self.arguments = arguments
        self.conf = conf
        self.environment = environment
        self.master = master
        self.spark_conn_id = spark_conn_id
        self.py_files = py_files
        self.files = files
        self.packages = packages
        self.jars = jars
        self.allow_new_queries = allow_new_queries
        self.rename_queries = rename_queries
        self.move_sources = move_sources
        self.accept_lost_input = accept_lost_input
        self.allow_state_loss = allow_state_loss
        self.allow_literal_secrets = allow_literal_secrets
        self.version_label = version_label
        self.on_query_failure = on_query_failure
        self.modules = modules
        self.working_folder = None if working_folder is None else str(working_folder)
        self.partitions = partitions
        self.state_store = state_store
        self.checkpoint_format = checkpoint_format
        self.migration = None if migration is None else str(migration)
        self.auto_migrate = auto_migrate
        self._built = True

    def change(self) -> ChangeRequest:
        """The rendered change; raises InvalidRequestError if a field is invalid."""
        from airflow_streamstate.controller.request.requests import change_request

        py_files, files = self._listed("py_files"), self._listed("files")
        return change_request(
            str(self.stream_id),
            application=optional_path(self.application),
            arguments=self._listed("arguments"),
            conf=text_mapping(self.conf, "conf"),
            environment=text_mapping(self.environment, "environment"),
            master=optional_text(self.master),
            spark_conn_id=optional_text(self.spark_conn_id),
            launcher=launcher_choice(self.launcher, self.launcher_options, self.launcher_conn_id, self.pod_template),
            py_files=None if py_files is None else tuple(map(Path, py_files)),
            files=None if files is None else tuple(map(Path, files)),
            modules=self._listed("modules") or None,
            working_folder=optional_path(self.working_folder),
            packages=self._listed("packages"),
            jars=self._listed("jars"),
            allow_new_queries=texts(self.allow_new_queries, "allow_new_queries"),
            rename_queries=text_mapping(self.rename_queries, "rename_queries"),
            move_sources=text_mapping(self.move_sources, "move_sources"),
            accept_lost_input=texts(self.accept_lost_input, "accept_lost_input"),
            allow_state_loss=yes_or_no(self.allow_state_loss, "allow_state_loss"),
            allow_literal_secrets=yes_or_no(self.allow_literal_secrets, "allow_literal_secrets"),
            version_label=optional_text(self.version_label),
            on_query_failure=one_of(
                optional_text(self.on_query_failure), (None, *ON_QUERY_FAILURE), "on_query_failure"
            ),
            reason=str(self.reason),
            partitions=optional_whole_number(self.partitions, "partitions"),
            state_store=one_of(optional_text(self.state_store), (None, *STATE_STORES), "state_store"),
            checkpoint_format=optional_whole_number(self.checkpoint_format, "checkpoint_format"),
            migration=optional_path(self.migration),
            auto_migrate=yes_or_no(self.auto_migrate, "auto_migrate"),
        )

    def _listed(self, name: str) -> tuple[str, ...] | None:
        """A list field; None, or None as rendered text, leaves the stream's own list as it is."""
        value = getattr(self, name)
        is_given = value is not None and (not isinstance(value, str) or optional_text(value) is not None)
        return texts(value, name) if is_given else None
