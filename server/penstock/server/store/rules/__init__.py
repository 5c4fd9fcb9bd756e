"""What may happen in a store: pure functions, rows in, changes or an error out.

No SQL, no clock and no waiting: times are arguments. `transactions` loads the rows that a rule
needs, calls it and writes its changes; so every kind of store decides alike.

`fence` (who may write), `attempts` (begin, commit), `groups` (as they are, their generations, their
end), `moves` (checkpoint, restore, seek), `plans` (of jobs), `lanes` (snapshots, ends, halts) with
`retention`, `verdicts`; `checks` refuses what no store may hold, `diff` says what changed.
"""
