"""What the training loop calls: the next batch, passes and steps, and what a Loader counts.

`reader` knows where the Loader stands and gives the next batch, which `intake` brings as values.
`batches` and `step_passes` have the iterators, `passes` where they begin and end, and `steps` what
the loop gets.
"""
