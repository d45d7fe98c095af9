"""Spark's checkpoint directory: the only code that knows it, and it needs no Spark.

``entries`` the text of the offset and commit logs · ``log`` one query's checkpoint and its position · ``barrier`` ends
a running query at a batch boundary · ``repair`` before a start · ``files`` of a position · ``fork`` and ``seed`` new
checkpoints · ``file_source`` the file source's own log · ``guards`` refusals.

Scope: Spark 3.5, 4.0 to 4.3, offset log v1; HDFS-backed state, and RocksDB with and without changelog checkpointing, in
state checkpoint format 1 and 2. All else is refused explicitly before anything is touched (Law 10).
"""
