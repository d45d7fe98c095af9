"""Drivers on another host, reached by SSH. ``remote`` and ``bootstrap`` run there, where nothing is installed."""
