"""`penstock demo`: the main job on real input, with everything killed once.

`corpus` has the data made; `processes` starts, watches and kills; `rank` is the trainer rank, a
program of its own that uses the public Loader; `play` is the order of events; `display` shows them;
`verdict` compares every batch that was delivered with what `local:` computes.
"""
