"""The subcommands of `penstock`, one per file, each with `add_parser(subparsers)` and `run(args) -> exit status`."""
