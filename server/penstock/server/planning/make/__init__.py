"""Making an index of sizes: every item is processed once, by many processes, and measured.

A block of positions of one source is the unit of work. `measuring.py` says what it holds, purely;
`finished_blocks.py` keeps what is finished, `dealt_blocks.py` says what is left;
`measuring_pool.py` spreads it over processes of this machine, `on_ray.py` over those of a Ray;
`making.py` puts the file together.
"""
