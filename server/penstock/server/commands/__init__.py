"""The operator's commands: `penstockd serve | init | check | show | schema`.

Each module holds one command; what it computes is in modules beside it, which know no flags and
terminals: `purity.py`, `measure.py` and `pace.py` for `check`, `text.py` for batches as text. How
lines reach a terminal is in `say.py`, `report.py` (errors) and `progress.py`.
"""
