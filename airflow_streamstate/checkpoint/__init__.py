"""Spark's checkpoint directory: the only code that knows it, and it needs no Spark.

``entries`` the text of the offset and commit logs · ``log`` one query's checkpoint and its position · ``barrier``
telling a running query to end at a batch boundary · ``repair`` what must happen before a start · ``files`` which files
make a position · ``fork`` and ``seed`` new checkpoints · ``file_source`` the file source's own log · ``guards`` what
is refused.

Scope: Spark 4.0 to 4.3, offset log v1; HDFS-backed state, and RocksDB with and without changelog checkpointing, in
state checkpoint format 1 and 2. All else is refused by name before anything is touched (Law 10).
"""
