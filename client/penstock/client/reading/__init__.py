"""How batches come to one rank: a stream from each node fills slots, from which the loop takes."""
