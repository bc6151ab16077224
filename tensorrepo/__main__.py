"""Entry point of ``python -m tensorrepo``: the command line."""

from tensorrepo.cli.main import main

if __name__ == "__main__":
    main()
