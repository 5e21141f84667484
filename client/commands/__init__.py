"""The subcommands of ``paceline``, one a file, each with its flags and ``run``."""
