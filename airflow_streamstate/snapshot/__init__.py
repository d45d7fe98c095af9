"""Snapshots: a deployment's checkpoints, each at one position, kept where nothing writes any more.

``capture`` takes one, the manifest last (Law 3) · ``data`` reads its files, and checks them before a start · ``verify``
names missing and altered files · ``seal`` adds the sha256 · ``checksums`` reads the checksum files of Spark.
"""
