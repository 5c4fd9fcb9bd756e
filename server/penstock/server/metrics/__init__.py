"""The metrics of a node, and where their values come from."""
