"""What a job will give, from the sizes of its samples alone: what `penstockd plan` says."""
