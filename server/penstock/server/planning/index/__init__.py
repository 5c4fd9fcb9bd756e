"""An index of sizes: its bytes, where it lies, and what it was made of. `make` makes it."""
