"""What the rest is built on: refs, permutations, verdicts, copies, memory. No input, no output."""
