"""The possible content of each key after a storm of faults, by the store's answers to writes."""

from __future__ import annotations

import random

from airflow_streamstate.errors import ObjectExistsError, OutcomeUnknownError, UnavailableError, VersionConflictError
from airflow_streamstate.store.base import Store


class Model:
    """What may be under each key, by what the store reported of the writes so far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.bodies: dict[str, set[bytes | None]] = {key: {None} for key in ("a", "b/c", "b/d")}
        self._versions: dict[str, str] = dict.fromkeys(self.bodies, '"none"')
        self.outcomes: set[str] = set()

    def step(self, chance: random.Random) -> str:
        """Do one thing, and note what was reported of it; the key that it was done to."""
        key = chance.choice(sorted(self.bodies))
        body = b"%d" % chance.randrange(3)  # often equal to what is there
        verb = chance.choice(["create", "create", "replace", "replace", "put", "delete"])
        after: set[bytes | None] = {None if verb == "delete" else body}
        try:
            getattr(self, verb)(key, body)
        except UnavailableError:
            after = self.bodies[key]
        except OutcomeUnknownError:
            after |= self.bodies[key]
        except ObjectExistsError:
            after = self.bodies[key] - {None}
            assert after, f"{key} cannot have been there"
        except VersionConflictError:
            after = self.bodies[key]
        else:
            self.outcomes.add(verb)
        self.bodies[key] = after
        return key

    def create(self, key: str, body: bytes) -> None:
        self._versions[key] = self._store.create(key, body)
        assert None in self.bodies[key], f"{key} cannot have been free"

    def replace(self, key: str, body: bytes) -> None:
        self._versions[key] = self._store.replace(key, body, self._versions[key])
        assert self.bodies[key] != {None}, f"{key} cannot have been there"

    def put(self, key: str, body: bytes) -> None:
        self._versions[key] = self._store.put(key, body)

    def delete(self, key: str, body: bytes) -> None:
        self._store.delete(key)
