"""Conveyor: a durable inbox for scrape jobs."""

__version__ = "0.1.0"
