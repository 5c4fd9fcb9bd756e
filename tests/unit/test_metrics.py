"""What a node's metrics say of a line's counters."""

from __future__ import annotations

from penstock.server.metrics import Metrics


def test_only_what_is_left_out_counts_as_skipped() -> None:
    """Samples that were split or cut are delivered, and cut tokens are no samples."""
    metrics = Metrics("0")
    counters = {
        "drawn": 9,
        "filtered:too short": 2,
        "quarantined:draw": 1,
        "overlong_dropped": 3,
        "overlong_split": 4,
        "truncated_tokens": 500,
    }

    metrics.counted("code", 0, counters)
    metrics.counted("code", 0, {**counters, "overlong_split": 6})

    def of(name: str, label: str) -> dict[str, float]:
        [family] = [f for f in metrics.registry.collect() if f.name == name]
        return {s.labels[label]: s.value for s in family.samples if s.name.endswith("_total")}

    assert of("penstock_samples_skipped", "reason") == {
        "filtered:too short": 2,
        "quarantined:draw": 1,
        "overlong_dropped": 3,
    }
    assert of("penstock_batcher_counts", "count") == {"overlong_split": 6, "truncated_tokens": 500}
