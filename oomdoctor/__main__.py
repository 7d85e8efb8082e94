"""`python -m oomdoctor` is the command line."""

from oomdoctor.cli.main import main

if __name__ == "__main__":
    main()
