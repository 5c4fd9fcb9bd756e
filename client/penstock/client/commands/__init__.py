"""The subcommands of `penstock`: modules with `add_parser(subparsers)` and `run(args) -> int`."""
