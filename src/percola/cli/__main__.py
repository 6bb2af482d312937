"""`python -m percola.cli`: the command line when the script `percola` is not on the path."""

from percola.cli import main

main()
