"""What is known when reading begins, and what a checkpoint holds of it: plain values."""
