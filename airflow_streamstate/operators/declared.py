"""Operators on streams that files declare: what differs, and making it so, wave by wave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    BaseOperator,
    conf,
)

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks import configuration
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import plain_markdown, texts
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import (
    RETURN_KEY,
    DefersToTrigger,
    names_of,
    rendered_terms,
    requester_of,
    taken_terms,
)
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import MOST_AT_A_TIME, CompareTerms, FileTerms, WaveTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.declarations.apply import Applied, ApplyStarted, ApplyTerms, Say, Target, UnderWay, Wait
    from airflow_streamstate.declarations.diff import StreamDifference
    from airflow_streamstate.declarations.reader import DeclaredStream
    from airflow_streamstate.triggers.streamstate import EventContent


class StreamFilesOperator(BaseOperator):
    """Base of the operators on files of streams; not for use by itself.

    :param streams: a file or folder, or a list of them. (templated)
    :param only: ids of streams of these files; the others are read, and left as they are. (templated)
    :param streamstate_conn_id: the Airflow connection that names the home. (templated)

    :param root: refuse a file whose paths leave this folder, links followed. By default there is no limit. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(FileTerms))
    template_fields: Sequence[str] = ("streams", "only", "streamstate_conn_id", *names_of(taken))
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        streams: str | Sequence[str],
        only: Sequence[str] | str = (),
        # terms
        root: str | Path | None = None,
        # end of terms
        streamstate_conn_id: str = StreamStateHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.streams = streams
        self.only = only
        # terms
        self.root = str(root) if isinstance(root, Path) else root
        # end of terms
        self.streamstate_conn_id = streamstate_conn_id

    def paths(self) -> list[Path]:
        """The files and folders. Raises InvalidRequestError."""
        paths = [self.streams] if isinstance(self.streams, str) and not self.streams.startswith("[") else self.streams
        return [Path(one) for one in texts(paths, "streams")]

    def declared(self) -> list[DeclaredStream]:
        """The streams of the files. Raises InvalidRequestError."""
        from airflow_streamstate.declarations.reader import read_streams

        only = texts(self.only, "only")
        read = read_streams(self.paths(), rendered_terms(FileTerms, self, StreamFilesOperator.taken).root)
        if not only:
            return list(read.need_all())
        found = [one for one in read.streams if one.stream_id in only]
        if missing := sorted(set(only) - {one.stream_id for one in found}):
            read.need_all()
            raise InvalidRequestError("no file declares this stream", stream_id=missing[0], paths=str(self.streams))
        return found

    def hook(self, context: Context) -> StreamStateHook:
        """The hook, with the task as the requester."""
        return StreamStateHook(str(self.streamstate_conn_id), requested_by=requester_of(context))


class CompareStreamsOperator(StreamFilesOperator):
    """Compare files of streams with what the home runs: new, changed, unchanged, no longer declared.

    It changes nothing: ``ApplyStreamsOperator`` applies the waves that it returns.

    Each changed version is rehearsed on a fork of its stream's state, as ``streamstate plan`` does. ``prune`` is
    refused unless ``streams`` are folders and ``only`` is empty.

    Returns ``{streams, waves, text}``: of each stream ``{stream_id, kind, step, state, deployment_id, fields, reason,
    verdict}``; the waves of ``ApplyStreamsOperator``, each ``{number, streams}``: the canary first, then waves of
    ``wave`` streams, those that are pruned last; and all of it as Markdown, for a person.

    :param rehearse: rehearse each changed version, as ``plan`` does. (templated)
    :param rehearsal_deadline_seconds: seconds until a rehearsal must have ended. (templated)
    :param canary: streams with this label (NAME or NAME=VALUE) come first; unless all of them become well, no other
        stream is touched. (templated)
    :param wave: how many streams are changed at a time. (templated)
    :param prune: also the streams of the home that no file of the folder declares: they are stopped, their state stays.
        (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(CompareTerms), terms_of(WaveTerms, "compare"))
    template_fields: Sequence[str] = (*StreamFilesOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        rehearse: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        canary: str | None = "",
        wave: int | str = 1,
        prune: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.rehearse = rehearse
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.canary = canary
        self.wave = wave
        self.prune = prune
        # end of terms

    def execute(self, context: Context) -> dict[str, Any]:
        with told_to_airflow(self):
            return self._compare(context)

    def _compare(self, context: Context) -> dict[str, Any]:
        from airflow_streamstate.declarations.apply import ApplyTerms, waves_of
        from airflow_streamstate.declarations.diff import compare_all

        terms = rendered_terms(ApplyTerms, self, self.taken)
        if terms.prune:
            self._need_all_streams()
        declared, hook = self.declared(), self.hook(context)
        all_waves = waves_of(declared, terms)
        rehearsal = rendered_terms(CompareTerms, self, self.taken)
        deadline = rehearsal.rehearsal_deadline_seconds if rehearsal.rehearse else None
        found = compare_all(
            hook.client, declared, deadline, lambda stream_id: self.log.info("%s", stream_id), are_all=terms.prune
        )
        changed = {one.stream_id for one in found if one.step != "nothing" and one.kind != "not declared"}
        waves = [ids for wave in all_waves if (ids := [one.stream_id for one in wave if one.stream_id in changed])]
        pruned = [one.stream_id for one in found if one.kind == "not declared" and one.step != "nothing"]
        waves += [pruned] if pruned else []
        text = as_markdown(found)
        self.log.info("%s", text)
        return {
            "streams": [one.to_json() for one in found],
            "waves": [{"number": number, "streams": ids} for number, ids in enumerate(waves)],
            "text": text,
        }

    def _need_all_streams(self) -> None:
        from airflow_streamstate.declarations.reader import need_folders

        need_folders(self.paths())
        if only := texts(self.only, "only"):
            raise pruned_beside(only)


class ApplyStreamsOperator(DefersToTrigger, StreamFilesOperator):
    """Make the streams of one wave as their files declare: deploy, upgrade, rescale, resume or stop each of them.

    Mapped over the waves of ``CompareStreamsOperator``, one at a time. The waves before are looked at again, which
    changes nothing if they are as declared: a canary that is not well, or too many failures, skip this task. A stream
    that would be changed otherwise than it was compared, because its file or what runs is another one by now, is
    refused. Idempotent: a retry continues what the try before started. A deferred task acts only in workers: it leaves
    its worker while all its streams wait, and comes back when there is something to do for one of them.

    Returns ``{streams}``: of each stream of the wave ``{stream_id, step, result, reason, deployment_id, upgrade_id}``.
    A task with a stream that is not as declared fails, with the same XCom.

    :param compared: the result of ``CompareStreamsOperator``.
    :param wave: the one of its ``waves`` to apply.
    :param deferrable: wait in the triggerer instead of in a worker slot; the result is the same.
    :param poll_interval_seconds: seconds between two polls while waiting in the triggerer; by default Airflow's option
        ``[streamstate] poll_interval_seconds``.

    :param canary: streams with this label (NAME or NAME=VALUE) come first; unless all of them become well, no other
        stream is touched. (templated)
    :param stop_after_failures: start no other stream after this many failures. (templated)
    :param healthy_for_seconds: seconds that the changed streams of a wave must stay well before the next wave; 0 does
        not watch them. (templated)
    :param try_again: try again what was refused or abandoned for the same file. (templated)
    :param timeout_seconds: seconds to wait for each deploy and each stop; for an upgrade the file has its own.
        (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(WaveTerms, "apply"))
    template_fields: Sequence[str] = (*StreamFilesOperator.template_fields, "compared", "wave", *names_of(taken))

    def __init__(
        self,
        *,
        compared: Any,
        wave: Any,
        # terms
        canary: str | None = "",
        stop_after_failures: int | str | None = None,
        healthy_for_seconds: float | str = 0.0,
        try_again: bool | str = False,
        timeout_seconds: float | str = 600.0,
        # end of terms
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval_seconds: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_interval_seconds = (
            configuration.poll_interval_seconds() if poll_interval_seconds is None else poll_interval_seconds
        )
        self.compared = compared
        self.wave = wave
        # terms
        self.canary = canary
        self.stop_after_failures = stop_after_failures
        self.healthy_for_seconds = healthy_for_seconds
        self.try_again = try_again
        self.timeout_seconds = timeout_seconds
        # end of terms

    def execute(self, context: Context) -> dict[str, Any]:
        with told_to_airflow(self):
            applied = self._apply(self.hook(context), None)
        return self._judged(context, applied)

    def execute_complete(
        self, context: Context, event: Any = None, begun: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Continue in a worker: a stream of the wave has something to do, or the worker has to look itself."""
        from airflow_streamstate.declarations.apply import ApplyStarted
        from airflow_streamstate.triggers.streamstate import read_event

        with told_to_airflow(self):
            content = read_event(event)
            known = None if begun is None else ApplyStarted.from_json(begun)
            applied = self._apply(self.hook(context), known, content)
        return self._judged(context, applied)

    def _judged(self, context: Context, applied: Sequence[Applied]) -> dict[str, Any]:
        result = {"streams": [one.to_json() for one in applied]}
        for one in applied:
            self.log.info("%s: %s %s %s", one.stream_id, one.step, one.result, one.reason)
        bad = [one for one in applied if not one.is_well]
        if not bad:
            return result
        context["ti"].xcom_push(key=RETURN_KEY, value=result)
        said = "; ".join(f"{one.stream_id}: {one.result}: {one.reason}" for one in bad)
        if all(one.result == "not begun" for one in applied):
            raise AirflowSkipException(said)
        if any(one.result == "failed" for one in bad):
            raise AirflowException(said)
        raise AirflowFailException(said)

    def _apply(
        self, hook: StreamStateHook, begun: ApplyStarted | None, event: EventContent | None = None
    ) -> list[Applied]:
        from airflow_streamstate.declarations.apply import Applying, wait_for

        known = set() if begun is None else {one.stream_id for one in begun.under_way}
        wait = _steps_due(known) if self.deferrable else wait_for
        waves, terms = self._waves()
        # ``dag.test()`` drops the kwargs of a deferral: the home shows what is under way, and a watch was the last.
        if begun is None and event is not None and event.watch.wanted == "unwell":
            terms = replace(terms, healthy_for_seconds=0.0)
        applying = Applying(hook.new_client, hook.clock, self._say, wait)
        applied, left = applying.apply_waves(waves, terms, int(self.wave["number"]), begun, is_tried_again=True)
        if left is not None:
            if event is not None and event.watch in [one.condition for one in left.under_way]:
                self._need_trigger(event)
            self._defer(hook, left)
        return [one for one in applied if one.stream_id in self.wave["streams"]]

    def _waves(self) -> tuple[list[list[Target]], ApplyTerms]:
        """All waves as they were compared, and how they are applied."""
        from airflow_streamstate.declarations.apply import ApplyTerms
        from airflow_streamstate.declarations.diff import StreamDifference

        by_id = {one.stream_id: one for one in self.declared()}
        compared = {one.stream_id: one for one in map(StreamDifference.from_json, self.compared["streams"])}
        named = [[str(name) for name in one["streams"]] for one in self.compared["waves"]]
        pruned = {name: one for name, one in compared.items() if one.kind == "not declared"}
        if gone := sorted({name for wave in named for name in wave} - set(by_id) - set(pruned)):
            raise InvalidRequestError("no file declares this stream any more", stream_id=gone[0])
        waves: list[list[Target]] = [[by_id.get(name) or pruned[name] for name in wave] for wave in named]
        terms = rendered_terms(
            ApplyTerms,
            self,
            self.taken,
            wave=min(max(1, len(waves[int(self.wave["number"])])), MOST_AT_A_TIME),
            compared=compared,
        )
        return waves, terms

    def _defer(self, hook: StreamStateHook, begun: ApplyStarted) -> None:
        """Leave the worker until something is due for one of the streams."""
        from airflow_streamstate.hooks.task_upgrades import relook_seconds

        now = hook.clock.now()
        until_at = min(one.until_at for one in begun.under_way)
        for one in begun.under_way:
            if one.condition.wanted == "upgrade":
                view = hook.client.upgrades.view(one.stream_id, one.condition.deployment_id)
                until_at = min(until_at, now + timedelta(seconds=relook_seconds(view, now)))
        first, *others = [one.condition for one in begun.under_way]
        self.defer_to_trigger(hook, first, format_time(until_at), or_watches=others, begun=begun.to_json())

    def _need_trigger(self, event: EventContent) -> None:
        """Raise the error of a triggerer that cannot look at what still waits: it would fire again at once."""
        if event.outcome == "over":
            event.need_result()

    def _say(self, stream_id: str, line: str) -> None:
        self.log.info("%s: %s", stream_id, line)


def _steps_due(known: Set[str]) -> Wait:
    """Takes the steps of a stream that are due now, and waits only while no version of it may be running.

    Args:
        known: streams whose steps so far were reported before.
    """
    from airflow_streamstate.controller.wait.waiting import PASSING
    from airflow_streamstate.hooks.task_upgrades import HOLD_SECONDS, advance_upgrade

    def wait(controller: Controller, waits: UnderWay, say: Say) -> Mapping[str, Any] | None:
        condition, stream_id = waits.condition, waits.stream_id
        tell = partial(say, stream_id)
        left_seconds = (waits.until_at - controller.clock.now()).total_seconds()
        if condition.wanted == "upgrade":
            view = controller.upgrades.view(stream_id, condition.deployment_id)
            hold_seconds = min(max(left_seconds, 0.0), HOLD_SECONDS)
            told = view.state.last.number if stream_id in known else 0
            view = advance_upgrade(
                controller, view, told=told, hold_seconds=hold_seconds, on_step=tell, on_progress=lambda _line: None
            )
            if view.is_over:
                return {}
        else:
            with suppress(*PASSING):  # proves nothing about the stream: the trigger looks again
                seen = controller.advance(condition)
                if seen.outcome != "pending":
                    return seen.need_result()
        if left_seconds <= 0:
            raise controller.out_of_time(condition, format_time(waits.until_at))
        return None

    return wait


def pruned_beside(only: Sequence[str]) -> InvalidRequestError:
    """The refusal to prune together with single streams."""
    return InvalidRequestError(
        "which streams no file declares is not known where only some are looked at",
        only=list(only),
        next_step="To prune, leave out `only`; one DAG of a folder prunes, not one of each file.",
    )


def as_markdown(found: Sequence[StreamDifference]) -> str:
    """The differences for a person who approves them."""
    touched = [one for one in found if one.step != "nothing"]
    lines = [f"{len(touched)} of {len(found)} streams would be changed.", ""]
    if touched:
        lines += ["| stream | is | would | verdict of its rehearsal |", "|---|---|---|---|"]
        lines += [
            f"| {' | '.join(map(plain_markdown, (one.stream_id, one.kind, one.step, one.verdict)))} |"
            for one in touched
        ]
    for one in touched:
        about = f"**{plain_markdown(one.stream_id)}** {plain_markdown(one.reason)}".rstrip()
        lines += ["", about, *([""] if one.fields else [])]
        lines += [
            f"- {plain_markdown(each.name)}: {plain_markdown(each.before) or '(none)'} to "
            f"{plain_markdown(each.after) or '(none)'}"
            for each in one.fields
        ]
    return "\n".join(lines)
