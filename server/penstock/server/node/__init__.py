"""A loader node at work: what its readers want, the workers that make it, snapshots to the store.

A `worker` is a process that holds lines; `arena` is the memory in which its batches go to the
server process. There `books` say which batch is the most urgent, and `node` gives it to a
worker and binds all to readers and to the store. Nothing here knows gRPC.
"""
