"""The server half: jobs, the pipeline that makes their batches, and the node that serves them."""
