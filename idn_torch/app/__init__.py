"""The command line application: configuration, run loop, run directory, table and plots."""
