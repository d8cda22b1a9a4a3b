"""Log lines: events with fields, without credentials."""

import logging
import re
import sys
from collections.abc import Sequence

import structlog

SECRET = re.compile(r"(?i)(apikey|api_key|x-api-key|authorization|signature)=[^&\s\"']+")
OWN_KEY = re.compile(r"\b(cvk_[0-9A-Za-z]+)_\w+")
QUERY = re.compile(r"(?i)(\bhttps?://[^\s?#\"'<>]*)[?#][^\s\"'<>]*")


def set_up_logs(level: str, *, json: bool) -> None:
    """Write one event per line to standard error, as JSON or in colour for a terminal.

    Messages of libraries take the same form, with a `logger` field, from level warning on.
    """
    numeric = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(default=str)
        if json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    common: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, without_secrets, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    _set_up_library_logs(max(numeric, logging.WARNING), common, renderer)


def _set_up_library_logs(
    level: int,
    common: Sequence[structlog.typing.Processor],
    renderer: structlog.typing.Processor,
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                without_secrets,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)


def without_secrets(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Mask credentials and the queries of URLs.

    No code logs them on purpose. This processor also catches those inside messages of libraries and
    tracebacks, which quote what they were given.
    """
    return {name: _masked(value) for name, value in event.items()}


def _masked(value: object) -> object:
    match value:
        case str():
            return QUERY.sub(r"\1?***", SECRET.sub(r"\1=***", OWN_KEY.sub(r"\1_***", value)))
        case dict():
            return {name: _masked(item) for name, item in value.items()}
        case list() | tuple():
            return [_masked(item) for item in value]
        case _:
            return value
