"""What people write in YAML, with the place of every value, and parameters of classes."""
