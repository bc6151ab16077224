"""``python -m tensorrepo``: the command line."""

from tensorrepo.cli.main import main

main()
