"""One rank of a training run: who it is, where its group stands, and what a checkpoint holds."""
