"""`python -m kinfolk` is the command."""

from kinfolk.cli import main

if __name__ == "__main__":
    main()
