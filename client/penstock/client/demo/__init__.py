"""`penstock demo`: the main job on real input, with everything killed once, by public commands.

`corpus` has the data made; `play` runs `penstockd serve`, `penstock cat` and `penstock cursors`,
and kills (`demo_process`), or several nodes in turn (`play_nodes`) over a PostgreSQL
(`demo_database`);
`account` compares every batch that was delivered with what `local:`
computes.
"""
