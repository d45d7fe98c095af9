"""What controller and driver say to each other: ids, messages, their JSON, where each lies, and the version.

Standard library only and no I/O: both sides, and anyone else who wants to speak the protocol, can read it whole.
"""
