"""Jobs to begin with: data that every machine has, and a processor of conversations.

`stdlib` makes a corpus of the running Python's own standard library: real text, real sizes, no
download. `penstock demo` and the benchmarks read it; nothing in it is special to them. `chat` turns
conversations into tokens by a model's chat template: `penstockd init` copies it beside the job file
that it writes for such data.
"""
