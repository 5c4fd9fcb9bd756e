"""The operator's commands: `penstockd serve | init | check | show | schema`.

Each module holds one command; what it computes stands beside it, away from flags and terminals:
`purity.py`, `measure.py` and `pace.py` for `check`, `text.py` for what people read of a batch. How
lines reach a terminal is in `say.py`, `report.py` (errors) and `progress.py`.
"""
