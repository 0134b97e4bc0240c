"""kvbench: which way of writing and reading a paged KV cache is fastest here, and why."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kvbench")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"
