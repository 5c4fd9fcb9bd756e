"""What may happen in a store: pure functions, rows in, changes or an error out.

No SQL, no clock and no waiting: times are arguments. An operation loads the rows that a rule needs,
calls it and writes its changes; so every kind of store decides alike.

`fence.py` (who may write), `generations.py` (begin, commit), `group_rules.py` (as they are, their
end), `checkpoints.py` (checkpoint, restore, seek), `plans.py` (of jobs), `lane_records.py`
(snapshots, ends, halts) with `retention.py`, `verdict_rules.py`; `arguments.py` refuses what no
store may hold, `diff.py` says what changed.
"""
