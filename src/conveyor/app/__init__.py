"""Composition: the only package that names adapters."""
