"""The `oomdoctor` command, also as `python -m oomdoctor`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is being loaded ends it without a traceback."""
    try:
        from oomdoctor.cli.main import main as program
    except KeyboardInterrupt:
        sys.exit(130)
    program()


if __name__ == "__main__":
    main()
