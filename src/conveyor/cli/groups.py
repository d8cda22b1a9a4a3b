"""The list of commands in `conveyor --help`, by what they are for."""

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Jobs": (
        "submit",
        "add",
        "close",
        "jobs",
        "runs",
        "status",
        "results",
        "export",
        "history",
        "errors",
        "rerun",
        "delete",
    ),
    "Live runs": ("pause", "resume", "stop"),
    "Running a service": ("dev", "api", "worker"),
    "Looking after it": ("keys", "doctor", "dlq"),
    "Trying it out": ("demo", "mock-gateway"),
}


class GroupedCommands(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - an override
        # Typer brings its own copy of click in some versions: there is no one type to name.
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in self._grouped().items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(width)) for name in names]
                )

    def _grouped(self) -> dict[str, list[str]]:
        """The groups, and one more for whatever is in none."""
        placed = {name for names in GROUPS.values() for name in names}
        groups = {
            heading: [name for name in names if name in self.commands]
            for heading, names in GROUPS.items()
        }
        groups["Other commands"] = [name for name in self.commands if name not in placed]
        return {heading: names for heading, names in groups.items() if names}
