"""Jobs to begin with, of data that every machine has.

`stdlib` makes a corpus of the running Python's own standard library: real text, real sizes, no
download. `penstock demo` and the benchmarks read it; nothing in it is special to them.
"""
