"""From draws to bytes, purely: no event loop, no processes.

The path of one batch, each file once: `raws` (fetch) -> `processing` (process) -> `planner` (draw,
size, group) -> `maker` (collate) -> `penstock.wire.frame`. A `line` is a planner and a maker at work
for one lane. Items beside this path, sized or judged, are in `items`.
"""
