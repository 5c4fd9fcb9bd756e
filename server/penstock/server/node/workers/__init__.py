"""What runs in a worker, where users' roles are."""
