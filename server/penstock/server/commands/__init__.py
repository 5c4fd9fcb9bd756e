"""The operator's commands: `penstockd serve | init | check | show | schema`.

Each module holds one command; what it computes stands beside it, away from flags and terminals:
`purity.py` and `measure.py` for `check`, `text.py` for what people read.
"""
