"""From draws to bytes: planner, maker, snapshots, workers, shared memory, tickets.

The path of one batch, each file once: `items` (fetch, process) -> `planner` (draw, size, group) ->
`maker` (collate) -> `penstock.wire.frame` -> `arena` -> `penstock.server.rpc`. A `line` is a
planner and a maker at work for one lane; a `worker` is a process that holds lines; `scheduler`
says which batch is the most urgent; `node` gives it to a worker, and binds all to readers and to
the store.
"""
