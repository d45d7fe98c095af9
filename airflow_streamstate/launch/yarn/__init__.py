"""Drivers as applications of a YARN cluster."""
