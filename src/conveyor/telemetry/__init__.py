"""Logs and metrics. Telemetry wraps ports, so that steps and adapters count nothing themselves."""
