"""``python -m rankbind`` is the command ``rankbind``."""

from rankbind.cli import main

if __name__ == "__main__":
    main()
