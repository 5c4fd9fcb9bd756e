"""A loader node at work: what its readers want, the workers that make it, snapshots to the store.

* `demand`: what readers want, and what is ready for them; state alone.
* `supply`: who makes a batch, what comes back, and what becomes of it.
* `workers`: what runs in a worker, where users' roles are.
* `protocol`: what both say to each other.
* `node`: the face of all this, and the order in which its parts start and end.

Nothing here knows gRPC.
"""
