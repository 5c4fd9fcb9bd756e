"""Which nodes there are, which of them may be read, and which of them makes what."""
