"""The command line's configuration: Hydra reads a package only where this file lies."""
