"""What controller and driver exchange: ids, messages, their JSON, their keys, and the version.

Standard library only and no I/O.
"""
