"""What the rest is built on: refs, permutations, code loading, tracebacks, hints, memory."""
