"""The status page on the port of the metrics: what a node does now, for people in a browser.

Its figures are those of `Feed.Status`, which `penstock top` shows: `strip.py` computes rates of two
of them, `history.py` keeps 15 minutes of these, `batch_page.py` shows one packed batch, and
`page.html` is all that a browser loads.
"""
