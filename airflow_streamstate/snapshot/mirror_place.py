"""Whether a place may be a mirror of a stream: another than its home, of this very stream, and not ahead of it."""

from __future__ import annotations

import json
from contextlib import suppress

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    InvalidRequestError,
    StreamStateError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import deployment_id_for, order_of
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.store.base import Store


def refuse_place(control: StreamControl, mirror: Store) -> None:
    """See that a mirror is no place of the stream's snapshots: there it would have no copy, and what is just being
    taken would be cleared as a half.

    Raises:
        InvalidRequestError: it is.
    """
    key = layout.place_record_key(control.stream_id)
    if mirror.head(key) is not None:
        raise InvalidRequestError(
            "a mirror is another place than that of the snapshots",
            stream_id=control.stream_id,
            mirror=mirror.uri,
            key=key,
            next_step="Name another disk, bucket or region.",
        )


def refuse_same(control: StreamControl, mirror: Store, checkpoints: Store) -> None:
    """See that a mirror is not the home, or the checkpoints, by another name (a symlink, a bind mount, another way to
    spell it): there every snapshot counts as copied, or what is just being taken as a half of one that is gone.

    Whoever looks after a mirror asks for this once, before it does anything else there.

    Args:
        control: the stream in its home.
        mirror: where its snapshots are to go.
        checkpoints: the store of the checkpoints.

    Raises:
        InvalidRequestError: it is.
        UnavailableError: one of them does not answer, or takes nothing.
    """
    key, body = layout.mirror_trial_key(control.stream_id), json.dumps(control.clock.new_uuid()).encode()
    mirror.put(key, body)
    try:
        found = [(store, store.get(key)) for store in (control.home, checkpoints)]
    finally:
        with suppress(StreamStateError):  # there are mirrors at which nothing may be deleted
            mirror.delete(key)
    same = next((store for store, stored in found if stored is not None and stored.body == body), None)
    if same is not None:
        raise InvalidRequestError(
            "a mirror is another place than the home, and this is the same one by another name",
            stream_id=control.stream_id,
            mirror=mirror.uri,
            same_as=same.uri,
            next_step="Name another disk, bucket or region.",
        )


def refuse_another(control: StreamControl, mirror: Store, spec: DeploymentSpec) -> None:
    """See that a deployment of this id at the mirror is this one.

    Raises:
        ConflictError: it is another.
        InvalidRequestError: as ``refuse_place``.
    """
    refuse_place(control, mirror)
    try:
        there = StreamControl(mirror, control.stream_id, control.clock).spec(spec.deployment_id)
    except (DeploymentNotFoundError, DataError):  # whoever restores is told of a damaged one
        return
    if there.identity != spec.identity:
        raise ConflictError(
            "the mirror has another deployment of this id, of another stream of this name",
            stream_id=control.stream_id,
            deployment_id=spec.deployment_id,
            mirror_uri=mirror.uri,
            created_at=there.created_at,
            created_here_at=spec.created_at,
            next_step="Mirror to another place, or move away what lies there.",
        )


def refuse_left_behind(control: StreamControl, mirror: Store) -> None:
    """See that the stream has not gone on elsewhere, in a home that was restored from this mirror: what is just being
    copied from there would be cleared as a half, with files that its next copies share.

    A home that was itself restored behind its newest deployment knows of that by its fencing token.

    Args:
        control: the stream in this home.
        mirror: where its snapshots are.

    Raises:
        ConflictError: it has.
        InvalidRequestError: as ``refuse_place``.
        StreamNotFoundError: the stream was deleted meanwhile.
    """
    there = StreamControl(mirror, control.stream_id, control.clock).deployment_ids()
    register, known = control.need_register().value, set(control.deployment_ids())  # last: a deploy may have come in
    reached = order_of(deployment_id_for(register.fencing_token))
    newer = [one for one in there if order_of(one) > reached]
    for deployment_id in known.intersection(newer):  # given up here, and maybe another one of the next free id
        with suppress(DeploymentNotFoundError):
            refuse_another(control, mirror, control.spec(deployment_id))
    newer = [one for one in newer if one not in known]
    if newer:
        raise ConflictError(
            "the mirror has a newer deployment, of which this home knows nothing: the stream went on elsewhere",
            stream_id=control.stream_id,
            deployment_id=register.deployment_id,
            newest_deployment_id=newer[-1],
            mirror=mirror.uri,
            next_step="Do this from the home in which it runs, or mirror to another place.",
        )
