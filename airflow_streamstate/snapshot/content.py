"""What a snapshot holds, as one digest: equal for two snapshots of one position, whoever took them, and when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot
from airflow_streamstate.snapshot.checksums import is_of_bytes


def content_digest(queries: Mapping[str, QuerySnapshot]) -> str:
    """Hex sha256 over the position of each query and its items: path, size, checksums.

    An entity tag of a server says something of one key only, and is left out.

    Args:
        queries: of the snapshot, by name.
    """
    content = {
        name: {
            "batch_id": query.position.batch_id,
            "planned_batch_id": query.position.planned_batch_id,
            "end_offsets": list(query.position.end_offsets),
            "items": [_item(entry) for entry in query.files],
        }
        for name, query in queries.items()
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _item(entry: FileEntry) -> list[object]:
    checksum = entry.checksum if is_of_bytes(entry.checksum) else ""
    return [entry.path, entry.size_bytes, entry.spark_crc32, checksum]
