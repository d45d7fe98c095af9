"""``StreamsDag``: a DAG that makes the streams of a home as files declare them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import DAG
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_2_PLUS
from airflow.providers.standard.operators.python import ShortCircuitOperator

from airflow_streamstate.declarations.reader import read_streams
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.declared import ApplyStreamsOperator, CompareStreamsOperator, pruned_beside

_BODY = "{{ ti.xcom_pull('compare')['text'] }}"


class StreamsDag(DAG):
    """Compares files of streams with the home, asks a person if that is wanted, and changes wave after wave.

    Tasks: ``compare``, ``waves``, ``approve`` with ``needs_approval``, and ``apply``, mapped over the waves. A stream
    that is refused fails its task, and holds back no other but those that depend on it. An approval covers just what
    was compared. The next run continues with what an interrupted one left.

    The files are read when a task runs, from where the DAG's file is: with versioned bundles, in the version of the
    run.

    :param streams: a file or a folder of files; a relative path is one from the folder of the DAG's file.
    :param only: ids of streams of these files; the others are left as they are.
    :param root: a folder: a file whose paths leave it, links followed, is refused; a relative path is one from the
        folder of the DAG's file. Empty: no limit.
    :param streamstate_conn_id: the Airflow connection that names the home.
    :param rehearse: rehearse each changed version on a fork of its stream's state before a person is asked.
    :param needs_approval: wait for a person under *Required Actions* (Airflow 3.1), with all differences and verdicts.
    :param approved_by_another: as ``needs_approval``; an approval by the user who has triggered the run fails the task.
    :param approval_timeout: after that without an answer nothing is changed.
    :param canary: a label, ``NAME`` or ``NAME=VALUE``: unless all streams that have it become well, nothing else is
        touched.
    :param wave: how many streams are changed at a time.
    :param healthy_for_seconds: how long the streams of a wave have to be well before the next one.
    :param stop_after_failures: after this many failures no other stream is started.
    :param prune: stop what no file declares; its state stays. Of a whole folder alone.
    :param deferrable: a wave waits in the triggerer. On Airflow 3.1 it waits in its worker: a deferred task does not
        count there, so that the next wave would start alongside it.

    Other parameters are those of a DAG. ``schedule`` is None and ``max_active_runs`` 1 unless given.
    """

    def __init__(
        self,
        streams: str,
        *,
        dag_id: str = "streams",
        only: Sequence[str] = (),
        root: str = "",
        streamstate_conn_id: str = StreamStateHook.default_conn_name,
        rehearse: bool = True,
        needs_approval: bool = False,
        approved_by_another: bool = False,
        approval_timeout: timedelta = timedelta(days=1),
        canary: str = "",
        wave: int = 1,
        healthy_for_seconds: float = 0.0,
        stop_after_failures: int | None = None,
        prune: bool = False,
        deferrable: bool = True,
        schedule: Any = None,
        **kwargs: Any,
    ) -> None:
        caller = sys._getframe(1).f_code.co_filename  # as Airflow finds the file of a DAG
        if prune and only:
            raise pruned_beside(only)
        super().__init__(
            dag_id, schedule=schedule, **{"catchup": False, "max_active_runs": 1, "tags": {"streamstate"}, **kwargs}
        )
        self.fileloc = caller
        files: dict[str, Any] = {
            "streams": str(Path(caller).parent / streams),
            "only": list(only),
            "root": str(Path(caller).parent / root) if root else "",
            "streamstate_conn_id": streamstate_conn_id,
        }
        with self:
            compare = CompareStreamsOperator(
                task_id="compare", **files, rehearse=rehearse, canary=canary, wave=wave, prune=prune
            )
            waves = ShortCircuitOperator(task_id="waves", python_callable=_waves, op_args=[compare.output])
            apply = ApplyStreamsOperator.partial(
                task_id="apply",
                **files,
                compared=compare.output,
                canary=canary,
                healthy_for_seconds=healthy_for_seconds,
                stop_after_failures=stop_after_failures,
                deferrable=deferrable and AIRFLOW_V_3_2_PLUS,
                max_active_tis_per_dagrun=1,
                map_index_template="{{ ', '.join(task.wave['streams']) }}",
            ).expand(wave=waves.output)
            if needs_approval or approved_by_another:
                waves >> _approval(dag_id, approval_timeout, by_another=approved_by_another) >> apply

    @classmethod
    def of_each(cls, streams: str, *, dag_id: str = "streams", **kwargs: Any) -> dict[str, StreamsDag]:
        """One DAG for each stream of the files, by its id ``DAG_ID-STREAM``; parameters as for ``StreamsDag``.

        A DAG file puts them into its namespace: ``globals().update(StreamsDag.of_each("streams"))``. A stream whose
        file has a problem has a DAG, too, whose first task reports the problem.

        Raises:
            InvalidRequestError: a path is not there, cannot be read, or a folder has no file of a stream; or ``prune``
                is given.
        """
        caller = sys._getframe(1).f_code.co_filename
        read = read_streams([Path(caller).parent / streams])
        names = {one.stream_id for one in read.streams} | {problem.path.stem for problem in read.problems}
        found = {}
        for name in sorted(names):
            one = cls(str(Path(caller).parent / streams), dag_id=f"{dag_id}-{name}", only=[name], **kwargs)
            one.fileloc = caller
            found[one.dag_id] = one
        return found


def _waves(compared: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``apply`` is mapped over; with nothing in it no person is asked."""
    return list(compared["waves"])


def _approval(dag_id: str, timeout: timedelta, *, by_another: bool) -> Any:
    # Imported where it is asked for: before Airflow 3.1 the module refuses to be imported.
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    from airflow_streamstate.operators.plan import ApprovalByAnotherOperator, answer_within

    return (ApprovalByAnotherOperator if by_another else ApprovalOperator)(
        task_id="approve",
        subject=f"Change streams as {dag_id} declares them?",
        body=_BODY,
        defaults="Reject",
        **answer_within(timeout),
    )
