"""The metrics of a node and of a Loader: one table.

`/metrics` has its help texts of it, docs/operate.md its table, and the dashboards of deploy/grafana
their descriptions and units. `python -m penstock.common.metric_table` prints the table of
docs/operate.md.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

JOB = "penstock_job"
"""The label of a job's name. `job` is Prometheus's own: a target's label of that name arrives as
`exported_job`."""

RANK = (JOB, "group", "rank")
"""The labels of what a Loader counts."""

BOARDS = ("fleet", "run", "store")
"""The dashboards of deploy/grafana."""

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]


class Metric(NamedTuple):
    """A metric.

    Attributes:
        kind: What Prometheus calls its kind.
        labels: The names of its labels.
        unit: What its value counts, in the plural; empty where it counts different things.
        text: What it says; with backquotes and links of docs/operate.md.
        seen: The dashboards and the alerts that are made of it.
    """

    kind: Kind
    labels: tuple[str, ...]
    unit: str
    text: str
    seen: tuple[str, ...] = ()


METRICS: dict[str, Metric] = {
    "penstock_build_info": Metric(
        "info",
        (),
        "",
        "The versions of penstock and Python.",
        ("fleet",),
    ),
    "penstock_start_time_seconds": Metric(
        "gauge",
        (),
        "seconds",
        "When the node started, in seconds since 1970.",
        ("fleet", "PenstockNodeFlaps"),
    ),
    "penstock_start_duration_seconds": Metric(
        "gauge",
        (),
        "seconds",
        "How long it took from the start of the process until the node was ready.",
        ("fleet",),
    ),
    "penstock_memory_bytes": Metric(
        "gauge",
        ("part",),
        "bytes",
        "Memory of the node by part: `server` and `workers`, what these processes have of "
        "their own, and `batches`, the pages of the arenas that batches lie in.",
        ("fleet",),
    ),
    "penstock_batches_produced_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches made, those that were made again included.",
        ("fleet", "run"),
    ),
    "penstock_produced_bytes_total": Metric(
        "counter",
        (JOB,),
        "bytes",
        "Bytes of batches made.",
        ("fleet",),
    ),
    "penstock_tokens_packed_total": Metric(
        "counter",
        (JOB,),
        "tokens",
        "Tokens in batches made, without padding; 0 where the collator does not count them.",
        ("run",),
    ),
    "penstock_padding_tokens_total": Metric(
        "counter",
        (JOB,),
        "tokens",
        "Tokens of padding in batches made.",
        ("run",),
    ),
    "penstock_batch_episodes_total": Metric(
        "counter",
        (JOB,),
        "episodes",
        "From how many episodes each batch made comes, added up: divided by the batches, how well "
        "the pool of `episodes` mixes.",
    ),
    "penstock_drawn_items_total": Metric(
        "counter",
        (JOB,),
        "items",
        "Items that lanes drew.",
        ("run",),
    ),
    "penstock_decode_duration_seconds": Metric(
        "summary",
        (JOB, "stage"),
        "seconds",
        "Seconds of the workers by stage, and the number of batches that they were "
        "spent on: where the time goes; stage `count`: of the processes that find out "
        "how many batches a finite job has.",
        ("run",),
    ),
    "penstock_source_read_bytes_total": Metric(
        "counter",
        (JOB,),
        "bytes",
        "Bytes read from storage, of sources that count them: `parquet`, `hf`, "
        "`jsonl` and the others that read files item by item.",
        ("run", "PenstockReadsAgain"),
    ),
    "penstock_media_read_bytes_total": Metric(
        "counter",
        (JOB,),
        "bytes",
        "Bytes read of the pictures and sounds that items name: files, parts of files, values of "
        "LMDBs.",
        (),
    ),
    "penstock_video_frames_total": Metric(
        "counter",
        (JOB, "what"),
        "frames",
        "Frames of videos: `decoded`; `delivered`, those that items want; `shared`, those of them "
        "that were decoded for an earlier item. `decoded` divided by `delivered` says what "
        "distant key frames cost.",
        ("run",),
    ),
    "penstock_video_opens_total": Metric(
        "counter",
        (JOB, "result"),
        "videos",
        "Videos of which frames were decoded: `hits`, it was open; `misses`, it was opened; "
        "`evictions`, it was closed to make room, within `decoders` and `decoder_bytes`.",
        ("run",),
    ),
    "penstock_video_cpu_seconds_total": Metric(
        "counter",
        (JOB, "stage"),
        "seconds",
        "Processor seconds of jobs that decode videos, by stage: `fetch` from storage, `decode`, "
        "`convert` to pixels, `copy` into the batch; without those of libraries' own threads.",
        ("run",),
    ),
    "penstock_source_drawn_bytes_total": Metric(
        "counter",
        (JOB,),
        "bytes",
        "Bytes that the drawn items take in storage, of sources that know their blocks: all that "
        "read files but `hf`, `hf_stream`, `folder` and `text` by document. What would be read if "
        "every block were read once.",
        ("run", "PenstockReadsAgain"),
    ),
    "penstock_packing_fill_ratio": Metric(
        "histogram",
        (JOB,),
        "ratio",
        "Tokens of a batch divided by its tokens and padding.",
        ("run",),
    ),
    "penstock_cache_hits_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Kept batches that were given to a late reader.",
        ("run",),
    ),
    "penstock_recomputed_batches_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches that were made before, and again because they were no longer kept "
        "when a reader wanted them.",
        ("fleet", "run", "PenstockRecomputes"),
    ),
    "penstock_unread_batches_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches that were made, and let go before any reader was given them: as a rule their "
        "readers read another node by then, which made them, too.",
        ("fleet", "PenstockRecomputes"),
    ),
    "penstock_ready_batches": Metric(
        "gauge",
        (JOB,),
        "batches",
        "Batches made and not yet taken by every reader that wants them.",
        ("run",),
    ),
    "penstock_ready_bytes": Metric(
        "gauge",
        (JOB,),
        "bytes",
        "Bytes of batches made and not yet taken; bounded by `ready_bytes`.",
        ("fleet",),
    ),
    "penstock_wanted_nodes": Metric(
        "gauge",
        (JOB,),
        "nodes",
        "Nodes that the readers of a job want in all, as this node reckons it from the last five "
        "minutes: [how many nodes](#how-many-nodes); 0 where nobody reads.",
        ("fleet",),
    ),
    "penstock_needed_workers": Metric(
        "gauge",
        (JOB,),
        "workers",
        "Workers of all nodes that a job needs, with head room, in the mean over the last five "
        "minutes: what `penstock_wanted_nodes` follows, before it is rounded and held.",
        ("fleet", "PenstockTooFewWorkers"),
    ),
    "penstock_units": Metric(
        "gauge",
        (JOB,),
        "units",
        "Units of a job that are dealt to nodes: reading groups, or lanes where there are none.",
        ("fleet", "PenstockUnitUnread"),
    ),
    "penstock_units_asked": Metric(
        "gauge",
        (JOB,),
        "units",
        "Units of a job that readers ask this node for, as it was seen within the last 5 seconds.",
        ("fleet", "PenstockUnitUnread", "PenstockRecomputes"),
    ),
    "penstock_ready_bound_bytes": Metric(
        "gauge",
        (),
        "bytes",
        "The bound on bytes of batches that are ready: `ready_bytes` of the job file.",
        ("fleet",),
    ),
    "penstock_lent_bytes": Metric(
        "gauge",
        (),
        "bytes",
        "Bytes of batches that processes on this host read in the node's memory.",
        ("fleet",),
    ),
    "penstock_batches_sent_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches that readers were given: sent, or lent.",
        ("fleet", "PenstockRecomputes", "PenstockUnitUnread"),
    ),
    "penstock_sent_bytes_total": Metric(
        "counter",
        (JOB,),
        "bytes",
        "Bytes of batches that readers were given.",
        ("fleet",),
    ),
    "penstock_sent_tokens_total": Metric(
        "counter",
        (JOB,),
        "tokens",
        "Tokens in batches that readers were given, without padding.",
        ("fleet", "run"),
    ),
    "penstock_batches_lent_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Of the batches that readers were given, those that were lent to processes on this host.",
        ("fleet",),
    ),
    "penstock_batches_lent_bytes_total": Metric(
        "counter",
        (JOB,),
        "bytes",
        "Bytes of batches that were lent.",
        (),
    ),
    "penstock_consumer_wait_seconds": Metric(
        "histogram",
        (JOB,),
        "seconds",
        "How long a reader that could take a batch waited for its next one, for each wait.",
        ("run", "PenstockStarved"),
    ),
    "penstock_quarantined_items": Metric(
        "gauge",
        (JOB, "source", "stage", "reason"),
        "items",
        "Items that verdicts leave out now, by source, stage and class of error; "
        "their sum is what `max_quarantined` bounds.",
        ("run", "PenstockQuarantineGrows"),
    ),
    "penstock_tail_dropped_batches": Metric(
        "gauge",
        (JOB,),
        "batches",
        'Batches at the end of a finite job that its last reader with `tail="drop"` '
        "did not get, since they fill no step.",
        (),
    ),
    "penstock_tail_dropped_samples": Metric(
        "gauge",
        (JOB,),
        "samples",
        "The samples in the batches that `penstock_tail_dropped_batches` counts.",
        (),
    ),
    "penstock_samples_skipped_total": Metric(
        "counter",
        (JOB, "reason"),
        "samples",
        "Items that were `filtered:` or `quarantined:`, samples that were `dropped:` "
        "by the batcher, and samples that a verdict left out of a batch, by reason: "
        "[what was left out](#what-was-left-out).",
        ("run",),
    ),
    "penstock_batcher_counts_total": Metric(
        "counter",
        (JOB, "count"),
        "",
        "Other counts of batchers, such as `overlong_split`, `overlong_truncated` "
        "(samples), `truncated_tokens`; and of told sizes that were not exact, "
        "`size:larger` and the like.",
        (),
    ),
    "penstock_retries_total": Metric(
        "counter",
        (JOB, "reason"),
        "tries",
        "Times that something was tried again: `unavailable`, after an error that may "
        "be temporary; `second_try`, an item that failed once.",
        ("run",),
    ),
    "penstock_part_target_ratio": Metric(
        "gauge",
        (JOB, "part", "by"),
        "ratio",
        "The share that each part of a `mixture` or of `rank_partitioned` shall have, "
        "of the items, tokens or lanes that `by` names; the parts of parts are "
        "`part/inner`, with their shares of the whole.",
        ("run",),
    ),
    "penstock_part_items_total": Metric(
        "counter",
        (JOB, "part"),
        "items",
        "Items drawn from each part of a `mixture`; the sum over the parts without "
        "`/` is the whole.",
        ("run",),
    ),
    "penstock_part_tokens_total": Metric(
        "counter",
        (JOB, "part"),
        "tokens",
        "Tokens of the items drawn from each part of a `mixture`, as the batcher counts them.",
        ("run",),
    ),
    "penstock_decode_errors_total": Metric(
        "counter",
        (JOB, "reason"),
        "errors",
        "How often a batch could not be made, by the code of the error.",
        ("run", "PenstockBatchFailed"),
    ),
    "penstock_verified_batches_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches that were made twice and compared: one in 1,000.",
        (),
    ),
    "penstock_impure_batches_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches that were made twice and differed: a role of the job is not pure, "
        "and `penstockd check` names the key.",
        ("PenstockImpure",),
    ),
    "penstock_witnesses_compared_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches whose digests were recorded, or compared with what was: one in 64 of each lane.",
        ("fleet",),
    ),
    "penstock_witnesses_diverged_total": Metric(
        "counter",
        (JOB,),
        "batches",
        "Batches that were made before, with another digest: the lane stops.",
        ("fleet", "PenstockWitnessDiverged"),
    ),
    "penstock_workers_ready": Metric(
        "gauge",
        (),
        "workers",
        "Worker processes that are ready.",
        ("fleet", "PenstockTooFewWorkers"),
    ),
    "penstock_worker_restarts_total": Metric(
        "counter",
        (),
        "workers",
        "Worker processes that ended unexpectedly.",
        ("fleet", "PenstockWorkersDie"),
    ),
    "penstock_streams": Metric(
        "gauge",
        (),
        "readers",
        "Open readers.",
        ("fleet",),
    ),
    "penstock_group_readers": Metric(
        "gauge",
        (JOB, "group"),
        "readers",
        "Open readers of a group.",
        ("run", "PenstockStarved", "PenstockFailovers"),
    ),
    "penstock_group_next_position": Metric(
        "gauge",
        (JOB, "group"),
        "batches",
        "The lowest position that is still to be sent to a group.",
        ("run",),
    ),
    "penstock_group_waiting_seconds": Metric(
        "gauge",
        (JOB, "group", "rank"),
        "seconds",
        "How long the slowest readers of a group have waited for batches, all waits since they "
        "opened their streams together.",
        ("run",),
    ),
    "penstock_group_stalled_seconds": Metric(
        "gauge",
        (JOB, "group", "rank"),
        "seconds",
        "For how long the slowest readers of a group have waited for the batch that they are "
        "owed now; 0 while they need not wait.",
        ("run", "PenstockReaderWaits"),
    ),
    "penstock_consumer_lag_batches": Metric(
        "gauge",
        (JOB, "group", "rank"),
        "batches",
        "Batches that were sent to the slowest readers of a group, and that they have "
        "not finished.",
        ("run",),
    ),
    "penstock_stream_restarts_total": Metric(
        "counter",
        (JOB,),
        "streams",
        "Streams that a rank has opened again within one attempt.",
        ("fleet",),
    ),
    "penstock_failovers_total": Metric(
        "counter",
        (JOB, "reason"),
        "nodes",
        "Times that a reader which reads here now has left another node, by why: `broke`, the "
        "connection or the node was gone; `silent`, it said nothing for 15 s or did not answer; "
        "`drains`, it shut down; `refuses`, it refused what others serve; `other`, what a newer "
        "reader says.",
        ("fleet", "PenstockFailovers"),
    ),
    "penstock_environment_refused": Metric(
        "gauge",
        (JOB,),
        "",
        "1 while the node refuses the job with `[log_diverged]`, as its packages make other "
        "batches than were made before.",
        ("fleet", "PenstockEnvironmentRefused"),
    ),
    "penstock_cursor_commit_duration_seconds": Metric(
        "histogram",
        (),
        "seconds",
        "How long a call of Commit takes until it is durable, or has failed.",
        ("store", "PenstockCommitSlow"),
    ),
    "penstock_cursor_call_duration_seconds": Metric(
        "histogram",
        ("method",),
        "seconds",
        "How long other calls about cursors take, by method.",
        ("store",),
    ),
    "penstock_cursor_fenced_total": Metric(
        "counter",
        (),
        "calls",
        "Calls and readers refused because a newer attempt has taken over.",
        ("store", "PenstockFenced"),
    ),
    "penstock_store_errors_total": Metric(
        "counter",
        ("reason",),
        "calls",
        "Calls that the store could not answer, by the code of the error.",
        ("store", "PenstockStoreFails"),
    ),
    "penstock_store_away_seconds": Metric(
        "gauge",
        (),
        "seconds",
        "For how long the store has failed without a break; 0 while it answers.",
        ("store", "PenstockStoreAway"),
    ),
    "penstock_store_polls_total": Metric(
        "counter",
        (),
        "looks",
        "Looks for what other nodes have written to the store: one a second while somebody reads.",
        ("store",),
    ),
    "penstock_fenced_elsewhere_total": Metric(
        "counter",
        (),
        "groups",
        "Groups whose attempts here are over by what another node has done.",
        ("store",),
    ),
    "penstock_snapshots_waiting": Metric(
        "gauge",
        (),
        "snapshots",
        "Lanes whose newest snapshot is not in the store yet: they only save time after a restart.",
        ("store",),
    ),
    "penstock_certificate_expires_seconds": Metric(
        "gauge",
        (),
        "seconds",
        "Seconds until the certificate that new connections get expires; negative after that. A "
        "node without TLS has no such series.",
        ("PenstockCertificateExpires", "PenstockCertificateLastDay"),
    ),
    "penstock_calls_refused_total": Metric(
        "counter",
        ("token", "code"),
        "calls",
        "Calls that were refused to who made them, by the name of the token (empty: none that is "
        "known) and the code: `unauthenticated` or `forbidden`.",
        ("PenstockCallsRefused",),
    ),
    "penstock_token_streams": Metric(
        "gauge",
        ("token",),
        "readers",
        "Open readers by the name of the token, on a node with tokens.",
    ),
    "penstock_token_sent_bytes_total": Metric(
        "counter",
        ("token",),
        "bytes",
        "Bytes of batches that readers were given, by the name of the token.",
    ),
    "penstock_draining": Metric(
        "gauge",
        (),
        "",
        "1 while the node drains.",
        ("fleet",),
    ),
    "penstock_loader_batches_total": Metric(
        "counter",
        RANK,
        "batches",
        "In a trainer: batches that its Loader has given.",
        ("run",),
    ),
    "penstock_loader_padding_batches_total": Metric(
        "counter",
        RANK,
        "batches",
        "In a trainer: those of the batches that were padding.",
    ),
    "penstock_loader_skipped_batches_total": Metric(
        "counter",
        RANK,
        "batches",
        "In a trainer: batches of steps that the training loop did not take.",
    ),
    "penstock_loader_bytes_total": Metric(
        "counter",
        RANK,
        "bytes",
        "In a trainer: bytes of the batches' bodies.",
    ),
    "penstock_loader_samples_total": Metric(
        "counter",
        RANK,
        "samples",
        "In a trainer: samples in the batches.",
    ),
    "penstock_loader_tokens_total": Metric(
        "counter",
        RANK,
        "tokens",
        "In a trainer: tokens in the batches, without padding.",
        ("run",),
    ),
    "penstock_loader_wait_seconds_total": Metric(
        "counter",
        (*RANK, "stage"),
        "seconds",
        "In a trainer: seconds that the loop has waited since its first batch, by what for: "
        "`network`, `memory`, `copy`, `decode`.",
        ("run",),
    ),
    "penstock_loader_first_batch_seconds": Metric(
        "gauge",
        RANK,
        "seconds",
        "In a trainer: how long the loop waited for its first batch.",
    ),
    "penstock_loader_reconnects_total": Metric(
        "counter",
        RANK,
        "streams",
        "In a trainer: streams that were opened again.",
        ("run",),
    ),
    "penstock_loader_failovers_total": Metric(
        "counter",
        (*RANK, "reason"),
        "nodes",
        "In a trainer: times that a node was left, by why, as in `penstock_failovers_total`.",
        ("run",),
    ),
    "penstock_loader_next_position": Metric(
        "gauge",
        RANK,
        "batches",
        "In a trainer: the position of the next batch.",
    ),
}
"""By the name under which Prometheus has it."""


def full_name(name: str) -> str:
    """Return the name of a metric in the table.

    Args:
        name: It, or what its samples have before `_total` or `_info`.
    """
    [found] = [name + end for end in ("", "_total", "_info") if name + end in METRICS]
    return found


def help_of(name: str) -> str:
    """Return what `/metrics` says of a metric: its text, without backquotes and links.

    Args:
        name: Its name, or what its samples have before `_total` or `_info`.
    """
    text = METRICS[full_name(name)].text
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


def table() -> str:
    """Return the table of docs/operate.md."""
    rows = ["| Name | Kind | Labels | Meaning | Seen in |", "|---|---|---|---|---|"]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        seen = ", ".join(
            seen if seen in BOARDS else f"[{seen}](alerts.md#{seen.lower()})"
            for seen in metric.seen
        )
        kind = f"{metric.kind}, {metric.unit}" if metric.unit else metric.kind
        rows.append(f"| `{name}` | {kind} | {labels} | {metric.text} | {seen} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201 - this is what it is run for
