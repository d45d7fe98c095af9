"""Requests to deploy or to change a stream, checked before anything is touched."""
