"""Settings that people know from other loaders, and where each of them is here.

A name in this table is a mistake wherever it is written; the sentence says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping

_WORKERS = (
    "the node has the workers: write workers: 4 below server: in the job file, or penstockd serve "
    "--workers 4, or a target spawn:FILE?workers=4"
)
_LIVE = "the node's workers live as long as it does, and their start is not the reader's"
_SIZE = (
    "the job file says how large a batch is, by batch_size: or by its batcher, and "
    "batches_per_step how many of them make a global batch"
)
_ORDER = (
    "the job's distributor decides the order: distributor: {type: map, shuffle: blocks}, with "
    "full or none in place of blocks; another seed: in the job is another order"
)
_SOURCE = "the job file names the data: source: {type: parquet, files: ...}"
_MEDIA = "the job says where pictures and sounds lie that items name: media: {dir: PATH}"
_COLLATE = (
    "the job's collator makes arrays of samples: collator: {type: packed}, or a function of yours "
    "as collator: {function: ./data.py:collate}"
)
_PROCESS = (
    "the job's processor makes samples of items: processor: {type: tokenize, ...}, or a function "
    "of yours as function: ./data.py:to_sample"
)
_LENGTH = (
    "the job's batcher bounds a row: batcher: {type: best_fit, max_tokens: 8192}, and collator: "
    "{type: packed, pad_to: 8192} pads it"
)
_SIZE_OF = (
    "the processor's samples have sizes, and length_key: of a batcher names the value whose length "
    "counts in place of tokens"
)
_STRATEGY = (
    "the batcher's type says how rows are filled: batcher: {type: best_fit, max_tokens: 8192}, or "
    "knapsack, first_fit or another that docs/batchers.md lists; neat and thd are layouts, "
    "as in collator: {type: packed, layout: thd}"
)
_PAD = "the job's collator pads rows: collator: {type: packed, pad_to: 8192}"
_TOKENS = (
    "leave it out: the node's workers make tokens, and penstockd index counts them ahead for plan:"
)
_BALANCE = "plan: of the job has balance: media_tokens, beside its index"
_SHARE = (
    "rank= and world_size= of each rank's Loader, or its launcher's variables, share the data out"
)
_AHEAD = "a Loader fetches ahead: prefetch= says how many batches may be ready"
_EPOCHS = "the job file says it: epochs: 3, or null for a job without an end"

RENAMED: Mapping[str, str] = {
    "pack_size": _LENGTH,
    "packing_length": _LENGTH,
    "packed_sequence_size": _LENGTH,
    "max_seq_len": _LENGTH,
    "collate_max_length": _PAD,
    "packing_strategy": _STRATEGY,
    "size_fn": _SIZE_OF,
    "pretokenize": _TOKENS,
    "balance_media_tokens": _BALANCE,
}
"""Parameters of other packing loaders that are spelled like keys of ours that mean something else:
`pack_size` is not a mistyped `batch_size`, so these come before the nearest known key."""

ELSEWHERE: Mapping[str, str] = {
    **RENAMED,
    "workers": _WORKERS,
    "num_workers": _WORKERS,
    "n_workers": _WORKERS,
    "num_proc": _WORKERS,
    "dataloader_num_workers": _WORKERS,
    "persistent_workers": _LIVE,
    "multiprocessing_context": _LIVE,
    "worker_init_fn": _LIVE,
    "in_order": "batches always come in order",
    "batch_size": _SIZE,
    "per_device_train_batch_size": _SIZE,
    "train_batch_size": _SIZE,
    "micro_batch_size": _SIZE,
    "global_batch_size": _SIZE,
    "gradient_accumulation_steps": (
        "batches_per_step counts the batches of a global batch over all ranks and micro batches, "
        "so it is world size x gradient_accumulation_steps"
    ),
    "shuffle": _ORDER,
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "shuffle_seed": _ORDER,
    "shuffle_buffer": _ORDER,
    "buffer_size": _ORDER,
    "generator": _ORDER,
    "media_folder": _MEDIA,
    "image_folder": _MEDIA,
    "data_folder": _MEDIA,
    "dataset": _SOURCE,
    "data_files": _SOURCE,
    "dataset_name": _SOURCE,
    "train_files": _SOURCE,
    "collate_fn": _COLLATE,
    "data_collator": _COLLATE,
    "transform": _PROCESS,
    "map_fn": _PROCESS,
    "preprocess": _PROCESS,
    "max_length": _LENGTH,
    "max_seq_length": _LENGTH,
    "seq_length": _LENGTH,
    "seq_len": _LENGTH,
    "block_size": _LENGTH,
    "packing": _LENGTH,
    "num_shards": _SHARE,
    "shard_index": _SHARE,
    "num_replicas": _SHARE,
    "drop_last": 'tail="drop" of the Loader leaves out the last step of a finite job if not full',
    "pin_memory": 'with device="cuda" a Loader copies each batch through pinned memory by itself',
    "pin_memory_device": "device= of the Loader says where tensors go, through pinned memory",
    "non_blocking": 'with device="cuda" a Loader copies while the loop works on the batch before',
    "prefetch_factor": _AHEAD,
    "prefetch_batches": _AHEAD,
    "timeout": "deadline_s= of the Loader says how long it waits",
    "num_epochs": _EPOCHS,
    "num_train_epochs": _EPOCHS,
    "repeat": _EPOCHS,
}
