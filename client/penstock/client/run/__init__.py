"""One rank of a training run: its number, its group's cursor, and its checkpointed state."""
