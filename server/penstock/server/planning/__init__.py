"""Sizes known beforehand: an index of them, the log that is planned from it, and what it tells."""
