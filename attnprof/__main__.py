"""``python -m attnprof`` is the command line."""

from attnprof.cli import main

if __name__ == "__main__":
    main()
