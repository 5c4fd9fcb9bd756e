"""What training frameworks need beside a Loader: one small module each, imported where it is used.

`trainer` is for the Trainer of transformers, `lightning` for Lightning, `data` for DataLoaders of
torch and torchdata. Plain loops, DistributedDataParallel, FSDP2, Accelerate and
torch.distributed.checkpoint take a Loader as it is. docs/frameworks.md has a script for each.
"""
