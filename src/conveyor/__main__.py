"""The `conveyor` command, also as `python -m conveyor`."""

import os

INTERRUPTED = 130  # as of a command that Ctrl-C ends later


def main() -> None:
    """Run the command. Ctrl-C while its modules are loaded ends it without a traceback."""
    try:
        from conveyor.cli.main import main as run  # noqa: PLC0415 - takes most of a second
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
