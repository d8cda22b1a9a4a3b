"""Conveyor: a durable inbox for scrape jobs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("conveyor-batch")
except PackageNotFoundError:  # sources that were never installed
    __version__ = "0.2.0.dev0"
