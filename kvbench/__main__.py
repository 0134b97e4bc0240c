"""`python -m kvbench` is `kvbench`."""

from kvbench.cli import main

main()
