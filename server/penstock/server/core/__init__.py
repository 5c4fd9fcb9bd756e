"""What the rest stands on: refs, permutations, code loading, tracebacks, hints, memory."""
