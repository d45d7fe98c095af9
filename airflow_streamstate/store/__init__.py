"""Bytes under keys, with conditions. ``interface`` says what every backend promises."""
