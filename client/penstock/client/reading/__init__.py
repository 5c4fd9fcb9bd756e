"""One rank reading: the stream, what is at hand of it, and the buffers and tensors it becomes."""
