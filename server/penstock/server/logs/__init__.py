"""What a process of penstockd writes on standard error, and what its children do."""
