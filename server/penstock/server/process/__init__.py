"""What is settled about a process before it computes: environment, allocator, packages."""
