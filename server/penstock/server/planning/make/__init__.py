"""Making an index of sizes: every item is processed once, by many processes, and measured.

A block of positions of one source is the unit of work. `measuring` says what it holds, purely;
`parts` keeps what is finished; `crew` and `worker` spread the blocks over processes of this machine
and `making` puts the file together.
"""
