"""Bytes under keys, with conditions. ``base`` states what every backend promises."""
