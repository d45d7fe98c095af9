"""Snapshots: a deployment's checkpoints, each at one position, kept where nothing writes any more.

``capture`` makes one, the manifest last (Law 3) · ``data`` its files, and the quick look before a start · ``verify``
names what is missing or altered · ``seal`` adds the sha256 · ``checksums`` the checksum files that Spark leaves.
"""
