"""The subcommands of `penstock`, one a file, each with `add_parser(subparsers)` and `run(args) -> exit status`."""
