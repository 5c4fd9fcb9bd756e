"""The operator's commands: `penstockd serve | init | check | show | schema`.

Each module holds one command; what it computes is in modules beside it, which know no flags and
terminals: `try_out.py`, `purity.py`, `measure.py` and `meter.py` for `check`. How lines reach a
terminal is in `say.py`, `error_text.py` and `progress.py`.
"""
