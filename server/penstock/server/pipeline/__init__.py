"""From draws to bytes, purely: no event loop, no processes.

The path of one batch, each file once: `raws` (fetch) -> `processing` (process) -> `sample_planner`
(draw, size, group) -> `maker` (collate) -> `penstock.wire.frame`. A `line` is a planner and a maker
at work for one lane. Sizes and verdicts, which not every item has, are in `items`.
"""
