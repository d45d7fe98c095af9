"""Rewrites the state of a query before its first batch: partitions, state store, or migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_streamstate.checkpoint.fork import fork, wipe
from airflow_streamstate.checkpoint.guards import PROVIDER, ROCKSDB_PROVIDER, line_of, provider_of
from airflow_streamstate.checkpoint.log import (
    STATE_IDS,
    Checkpoint,
    CommitEntry,
    OffsetEntry,
    delete_with_crc,
    format_commit_entry,
    parse_commit_entry,
)
from airflow_streamstate.checkpoint.seed import (
    PINNED_CONF_KEYS,
    SeedPlan,
    StateIds,
    committed_files,
    keys_written,
    moved_state_files,
    pins_of,
    prepare_seed,
    refuse_store,
)
from airflow_streamstate.checkpoint.state_files import operator_stores, write_operator_metadata
from airflow_streamstate.control.artifacts import read_pinned
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import RewriteOrder, RewrittenState, StartableQuery
from airflow_streamstate.driver.start.query_seed import stored_entry
from airflow_streamstate.driver.start.recorded_plans import plan_of
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    IncompatibleUpgradeError,
    InvalidRequestError,
)
from airflow_streamstate.migration import Migration, MigrationFile, read_migrations
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import find_operator, last_recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.records import DeploymentSpec, StateRewrite
from airflow_streamstate.protocol.scratch import RehearsedQuery, RewrittenTable
from airflow_streamstate.store.transfer import keys_below

SAMPLES = 5
_MOST_CARRIED = 50
"""At most this many deployments that may never have started a query are looked at."""


@dataclass(frozen=True)
class Rewritten:
    """State that was rewritten.

    Attributes:
        files: of the new checkpoint: path -> key.
        conf: the pinned settings that change.
        state_ids: of the new state; None in format 1.
        tables: what was written.
    """

    files: Mapping[str, str]
    conf: Mapping[str, str]
    state_ids: StateIds | None = None
    tables: tuple[RewrittenTable, ...] = field(default=())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Human-readable."""
        words = []
        for table in self.tables:
            how = "migrated" if table.is_migrated else "rewritten"
            rows = "its rows" if table.rows is None else f"{table.rows:,} rows"
            words.append(f"state {table.table}: {rows} {how}, in {table.partitions} partitions")
        return tuple(words)


def rewrite_if_asked(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    known: QuerySnapshot,
    files: Mapping[str, str],
    *,
    is_rehearsed: bool,
) -> Rewritten | None:
    """Rewrite the state of a snapshot's query; None where the deployment does not ask for it, or it has no state.

    Args:
        files: of the snapshot: path -> key.
        is_rehearsed: no sink is asked, and what was written is compared with what was read.

    Raises:
        IncompatibleUpgradeError: the old state has no place in the new version, or a migration is not usable.
        UnsupportedCheckpointError: this Spark cannot do it, or the old state's store cannot be repartitioned.
        InvalidRequestError: the migration names what is not there.
        DataError: rows got lost on the way.
    """
    position = known.position
    has_begun = position.batch_id is not None or position.planned_batch_id is not None
    rewrite = rewrite_of(attempt, name) if startable.facts.stateful and has_begun else None
    if rewrite is None:
        return None
    return _Rewrite(attempt, name, startable, known, files, rewrite, is_rehearsed).run()


def rewrite_of(attempt: Attempt, query_name: str) -> StateRewrite | None:
    """How the state of a query is rewritten.

    As this deployment asks, and as those before it asked that never started the query, whose state is as it was
    before them (1a.12).

    Raises:
        IncompatibleUpgradeError: two migrations would follow each other.
    """
    asked = attempt.spec.start.rewrite
    manifest = attempt.start.manifest()
    deployment_id = None if manifest is None else manifest.deployment_id
    for _ in range(_MOST_CARRIED):
        if deployment_id is None or _was_started(attempt, deployment_id, query_name):
            break
        try:
            before = attempt.control.spec(deployment_id)
        except DeploymentNotFoundError:
            break
        asked = _after(asked, before, query_name)
        deployment_id = before.start.predecessor_id
    return None if asked is None or asked.is_of_nothing else asked


def _was_started(attempt: Attempt, deployment_id: str, query_name: str) -> bool:
    folder = layout.checkpoint_folder(attempt.stream_id, deployment_id, query_name)
    if Checkpoint(attempt.checkpoints, folder).exists():
        return True
    events = attempt.control.journal(deployment_id).events()
    return any(isinstance(one.event, QueryStarted) and one.event.query_name == query_name for one in events)


def _after(asked: StateRewrite | None, before: DeploymentSpec, query_name: str) -> StateRewrite | None:
    """A rewrite behind one that never reached the query."""
    pending = before.start.rewrite
    if pending is None:
        return asked
    if asked is None:
        return pending
    if asked.undoes == before.deployment_id:
        return None
    if asked.migration is not None and pending.migration is not None and asked.migration != pending.migration:
        raise IncompatibleUpgradeError(
            "this query was never started in the version before, so its state is still to be migrated for that one",
            query_name=query_name,
            deployment_id=before.deployment_id,
            pending=pending.migration.name,
            asked=asked.migration.name,
            next_step="Deploy the version before until it has started that query, then this one.",
        )
    return replace(
        pending,
        partitions=asked.partitions if asked.partitions is not None else pending.partitions,
        state_store=asked.state_store or pending.state_store,
        checkpoint_format=asked.checkpoint_format or pending.checkpoint_format,
        migration=asked.migration or pending.migration,
        is_inverse=asked.is_inverse if asked.migration is not None else pending.is_inverse,
        auto_migrate=asked.auto_migrate or pending.auto_migrate,
        rewriter_spark=asked.rewriter_spark or pending.rewriter_spark,
        undoes=asked.undoes,
    )


def clear_rewrite(attempt: Attempt, name: str) -> None:
    """Remove what a rewrite left alongside the checkpoint that was built of it."""
    wipe(_beside(attempt, name))


def migrations_of(attempt: Attempt, rewrite: StateRewrite, query_name: str) -> tuple[Migration, ...]:
    """The migrations of a query, in the direction that is asked for.

    Raises:
        InvalidRequestError: the file is not usable, or has no function in that direction.
        DataError: the home lacks the file.
    """
    if rewrite.migration is None:
        return ()
    body = read_pinned(attempt.control.home, attempt.stream_id, rewrite.migration)
    return tuple(each for each in read_migrations(body, rewrite.migration.name) if each.query == query_name)


def unused_migrations(attempt: Attempt, rewrite: StateRewrite, queries: Mapping[str, RehearsedQuery]) -> set[str]:
    """The queries that a file has migrations for, of which none was rewritten through a function."""
    if rewrite.migration is None:
        return set()
    body = read_pinned(attempt.control.home, attempt.stream_id, rewrite.migration)
    used = {name for name, query in queries.items() if any(table.is_migrated for table in query.rewritten)}
    return {each.query for each in read_migrations(body, rewrite.migration.name)} - used


def migrated_operators(attempt: Attempt, query_name: str, plan: QueryPlan) -> set[int]:
    """The operators of a query whose state goes through a migration; raises as ``migrations_of``."""
    rewrite = rewrite_of(attempt, query_name)
    if rewrite is None:
        return set()
    if rewrite.auto_migrate:
        return {operator.operator_id for operator in plan.operators}
    found = migrations_of(attempt, rewrite, query_name)
    return {find_operator(plan, each.operator).operator_id for each in found}


class _Rewrite:
    def __init__(
        self,
        attempt: Attempt,
        name: str,
        startable: StartableQuery,
        known: QuerySnapshot,
        files: Mapping[str, str],
        rewrite: StateRewrite,
        is_rehearsed: bool,
    ) -> None:
        self._attempt = attempt
        self._is_rehearsed = is_rehearsed
        self._name = name
        self._startable = startable
        self._known = known
        self._files = files
        self._rewrite = rewrite
        self._last = self._need_entry()

    def run(self) -> Rewritten:
        conf = pins_of(self._rewrite)
        batches = self._batches_with_state()
        if batches:
            self._check_provider(conf)
        wipe(_beside(self._attempt, self._name))
        files = {path: key for path, key in self._files.items() if not path.startswith("state/")}
        done = Rewritten(files, conf)
        for batch_id in batches:
            before, after = self._folders(batch_id)
            found = self._surely_written(batch_id, before, after, conf)
            if found is None:
                return Rewritten(self._files, conf)
            files.update(moved_state_files(after, batch_id))
            ids = found.state_ids if batch_id == self._known.position.batch_id else done.state_ids
            done = replace(done, state_ids=ids, tables=found.tables)
        for words in done.remarks:
            self._say(words)
        return done

    def _surely_written(
        self, batch_id: int, before: Checkpoint, after: Checkpoint, conf: Mapping[str, str]
    ) -> RewrittenState | None:
        """As ``_written``; once more where rows seem to be lost, since Spark counts those of a stage that it ran again
        twice."""
        try:
            return self._written(batch_id, before, after, conf)
        except DataError as error:
            self._say(f"it is written once more: {error}")
            wipe(before)
            wipe(after)
            return self._written(batch_id, before, after, conf)

    def _written(
        self, batch_id: int, before: Checkpoint, after: Checkpoint, conf: Mapping[str, str]
    ) -> RewrittenState | None:
        """Rewrite the state that a batch left; None where the query has none."""
        attempt = self._attempt
        self._say(f"the state of batch {batch_id} is laid out; an empty batch of the new version makes the new schema")
        self._fork(batch_id, before)
        write_operator_metadata(before, batch_id)
        self._lay_down(after, conf)
        added = write_operator_metadata(after, 0)
        paths = _state_paths(after)
        partitions = {each.operator_id: max(each.stores.values()) for each in operator_stores(after, 0, paths)}
        if not partitions:
            self._check_stateless(before, batch_id)
            return None
        self._say("its state is rewritten")
        found = self._startable.rewrite_state(
            RewriteOrder(
                before_uri=attempt.uri_of(before),
                batch_id=batch_id,
                state_format=_format_of(before, self._known.position.batch_id),
                is_rocksdb=provider_of(self._last) == ROCKSDB_PROVIDER,
                after_uri=attempt.uri_of(after),
                partitions=partitions,
                after_format=_format_of(after, 0),
                migrations=self._migrations(),
                migration_file=self._migration_file(),
                aggregates=self._aggregates(),
                may_fill=self._rewrite.undoes is None,
                on_written=partial(_note_ids, after),
                is_verified=self._is_rehearsed,
                samples=SAMPLES,
                rewriter=self._rewrite.rewriter_spark,
            )
        )
        for path in added:  # the job's own Spark keeps none
            delete_with_crc(after.store, after.key(path))
        self._check_written(after, found.rows_read)
        return found

    def _check_stateless(self, before: Checkpoint, batch_id: int) -> None:
        """Spark leaves out of an empty batch what nothing can come of, such as a limit; its schema is then unknown."""
        kept = operator_stores(before, batch_id, _state_paths(before))
        if kept:
            raise IncompatibleUpgradeError(
                "an empty batch of the new version keeps no state, so this state cannot be rewritten",
                query_name=self._name,
                operators=[each.operator_name for each in kept],
                next_step="Leave the state of a limit as it is; or drain, and seed the new version.",
            )

    def _say(self, words: str) -> None:
        self._attempt.reporter.say(f"query {self._name}: {words}")

    def _need_entry(self) -> OffsetEntry:
        position = self._known.position
        batch_id = position.planned_batch_id if position.batch_id is None else position.batch_id
        entry = stored_entry(self._attempt.checkpoints, self._files, batch_id)
        if entry is None:
            raise DataError("the snapshot lacks the entry of its last batch", query_name=self._name, batch_id=batch_id)
        return entry

    def _batches_with_state(self) -> list[int]:
        """The batches whose state is rewritten: the last committed one, and the planned one if the sink holds it.

        Spark does not run that planned batch again, and continues with the state that it left.
        """
        position = self._known.position
        found = [] if position.batch_id is None else [position.batch_id]
        planned_id = position.planned_batch_id
        if planned_id is not None and not self._is_rehearsed:
            held = self._startable.held_batches(self._known.query_id, planned_id)
            if not held.unknown_reason and not held.lacks(planned_id):
                self._refuse_unnamed(planned_id)
                found.append(planned_id)
        return found

    def _refuse_unnamed(self, planned_id: int) -> None:
        """In state checkpoint format 2 a commit names the files of the state, and a planned batch has none."""
        path = f"commits/{self._known.position.batch_id}"
        stored = self._attempt.checkpoints.get(self._files[path]) if path in self._files else None
        if stored is not None and parse_commit_entry(stored.body, key=self._files[path]).has_state_ids:
            raise ConflictError(
                "a batch is planned that the sink holds already, and in checkpoint format 2 its state is not known",
                query_name=self._name,
                planned_batch_id=planned_id,
                next_step="Resume the old version until that batch is committed, then try again.",
            )

    def _folders(self, batch_id: int) -> tuple[Checkpoint, Checkpoint]:
        """Where the old state of a batch is laid out, and where the new one is written."""
        beside = _beside(self._attempt, self._name)
        before, after = (f"{beside.prefix}/{batch_id}/{name}" for name in ("before", "after"))
        return Checkpoint(beside.store, before), Checkpoint(beside.store, after)

    def _fork(self, batch_id: int, before: Checkpoint) -> None:
        """A checkpoint at which this batch is the last committed one."""
        # Spark ends a running query when another one starts with the same id.
        instead = {"metadata": f'{{"id":"{self._attempt.clock.new_uuid()}"}}'.encode()}
        files = committed_files(self._files, batch_id)
        if batch_id == self._known.position.planned_batch_id:
            instead[f"commits/{batch_id}"] = format_commit_entry(CommitEntry(0))
        fork(self._attempt.checkpoints, files, before, instead)

    def _check_provider(self, conf: Mapping[str, str]) -> None:
        refuse_store(self._name, conf.get(PROVIDER, provider_of(self._last)))

    def _lay_down(self, after: Checkpoint, conf: Mapping[str, str]) -> None:
        last, attempt = self._last, self._attempt
        count = self._startable.facts.sources_count
        keys = last.source_keys[:count] if last.version == "v2" else ()
        lines = last.source_lines[:count]
        plan = SeedPlan(attempt.clock.new_uuid(), max(self._known.position.batch_id or 0, 1), lines, source_keys=keys)
        # Settings that the old checkpoint does not pin are the session's.
        session = self._startable.session_conf(PINNED_CONF_KEYS)
        now_ms = int(attempt.clock.now().timestamp() * 1000)
        prepare_seed(after, plan, conf={**session, **last.conf, **conf}, batch_timestamp_ms=now_ms)
        self._startable.run_seed_batch(attempt.uri_of(after))

    def _migration_file(self) -> MigrationFile | None:
        file = self._rewrite.migration
        if file is None:
            return None
        body = read_pinned(self._attempt.control.home, self._attempt.stream_id, file)
        return MigrationFile(file.name, body, self._rewrite.is_inverse)

    def _migrations(self) -> dict[tuple[int, str], Migration]:
        found: dict[tuple[int, str], Migration] = {}
        wanted = migrations_of(self._attempt, self._rewrite, self._name)
        if not wanted:
            return found
        plan = plan_of(self._attempt, self._name, self._startable)
        for each in wanted:
            chosen = each.inverted() if self._rewrite.is_inverse else each
            if chosen is None:
                raise InvalidRequestError(
                    "this migration has no inverse, so the old version cannot continue with the new state",
                    query_name=self._name,
                    operator=each.operator,
                    next_step="Give one (@migrate(…, inverse=function)); or go back by undoing the output.",
                )
            operator = find_operator(plan, each.operator)
            if (operator.operator_id, each.table) in found:
                raise InvalidRequestError(
                    "two migrations are for the same state, under two names of its operator",
                    query_name=self._name,
                    operator=each.operator,
                    table=each.table,
                    next_step="Leave one of them out.",
                )
            found[operator.operator_id, each.table] = chosen
        return found

    def _aggregates(self) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]] | None:
        """The aggregates of the operators that have others than before; None without automatic migrations."""
        if not self._rewrite.auto_migrate:
            return None
        new = plan_of(self._attempt, self._name, self._startable)
        manifest = self._attempt.start.manifest()
        plans = (
            {} if manifest is None else last_recorded_plans(self._attempt.control, manifest.deployment_id, {self._name})
        )
        old = plans.get(self._name)
        if old is None:
            raise InvalidRequestError(
                "the plan of the old version is not recorded, so its state cannot be migrated without a function",
                query_name=self._name,
                next_step="Give a migration (--migration).",
            )
        found = {}
        for before, now in zip(old.operators, new.operators):
            texts = tuple(each.text for each in before.aggregates), tuple(each.text for each in now.aggregates)
            if before.kind == now.kind and texts[0] != texts[1]:
                check_told_apart(self._name, (old.spark_version, new.spark_version), texts)
                found[now.operator_id] = texts
        return found

    def _check_written(self, after: Checkpoint, rows_read: Mapping[int, int]) -> None:
        written = keys_written(after)
        for operator_id, rows in rows_read.items():
            if written.get(operator_id, rows) != rows:
                raise DataError(
                    "not all rows of the old state were written",
                    query_name=self._name,
                    operator_id=operator_id,
                    rows_read=rows,
                    rows_written=written[operator_id],
                    next_step="This is a defect, of this package or of Spark: nothing was changed. Drain, and seed it.",
                )


def check_told_apart(name: str, sparks: tuple[str, str], texts: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Refuse aggregates that come and go between two Sparks: these may write down one of them in two ways.

    Args:
        sparks, texts: the version of Spark and the aggregates before, and now.

    Raises:
        IncompatibleUpgradeError: it is so.
    """
    gone, come = set(texts[0]) - set(texts[1]), set(texts[1]) - set(texts[0])
    if line_of(sparks[0]) != line_of(sparks[1]) and gone and come:
        raise IncompatibleUpgradeError(
            "between two Sparks it is not certain which aggregate is a new one",
            query_name=name,
            gone=sorted(gone),
            added=sorted(come),
            next_step="Move to the other Spark first, then change them; or give a migration (--migration).",
        )


def _note_ids(after: Checkpoint, ids: StateIds | None) -> None:
    """Let the commit of the empty batch name the state that was written in place of its own."""
    key, commit = after.commit_key(0), after.read_commit(0)
    if ids is None or commit is None:
        return
    delete_with_crc(after.store, key)
    after.store.put(key, format_commit_entry(replace(commit, extra={**commit.extra, STATE_IDS: dict(ids)})))


def _format_of(checkpoint: Checkpoint, batch_id: int | None) -> int:
    """The state checkpoint format that a commit shows."""
    commit = None if batch_id is None else checkpoint.read_commit(batch_id)
    return 2 if commit is not None and commit.has_state_ids else 1


def _beside(attempt: Attempt, name: str) -> Checkpoint:
    folder = layout.building_folder(attempt.stream_id, attempt.deployment_id, name)
    return Checkpoint(attempt.checkpoints, folder)


def _state_paths(checkpoint: Checkpoint) -> set[str]:
    prefix = checkpoint.key("state/")
    return {key[len(prefix) :] for key in keys_below(checkpoint.store, prefix)}
