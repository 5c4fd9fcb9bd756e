"""The memory that batches lie in: pooled, or lent by a node on this host, until nobody reads it.

`landing` finds a place for a body, `assembly` fills it and checks it. `buffers` has the pool.
`borrowing` has what a node lends: `borrower_socket` is the connection, `lent_arenas` the memory.
`lifetimes` notices which arrays are gone, and `stages` how long memory was waited for.
"""
