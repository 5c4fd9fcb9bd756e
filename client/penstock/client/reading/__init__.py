"""How one rank reads: the stream, the batches received, their buffers and their tensors."""
