"""Targets of a Loader that start a node of their own: `local:` and `spawn:`."""
