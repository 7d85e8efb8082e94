"""The command line: typer, the streams, and the one place where an error becomes an exit code."""
