"""A loader node at work: what its readers want, the workers that make it, snapshots to the store.

In the server process: `reader` and `books` (what is wanted, what is ready), `dispatch` (who makes
what), `answers` (what comes back), `crew` (the workers' lives), `shelf` (snapshots), `audit`
(batches made twice), `quarantine` (verdicts); `node` is their face. In each worker: `worker`.
Between them: `process`, `channel`, `messages`, `page` and, for the bytes of batches, `arena`.
Nothing here knows gRPC.
"""
