"""Charts with two logarithmic axes, as SVG."""

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import msgspec

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 210, 40, 52
INK, GRID = "#333333", "#e4e4e4"
COLOURS = ("#1b6ca8", "#c8553d", "#588b4f", "#8e5ea2", "#b8860b", "#5f6b75")


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]
    is_bold: bool = False


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    across: str
    up: str
    x: tuple[float, float]
    y: tuple[float, float]
    marks_x: Sequence[float]
    marks_y: Sequence[float]
    lines: Sequence[Line]

    def svg(self) -> str:
        parts = [*self._frame(), *self._curves()]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
            + "\n".join(parts)
            + "\n</svg>\n"
        )

    def _frame(self) -> Iterator[str]:
        yield f'<text x="{LEFT}" y="22" font-size="15">{escape(self.title)}</text>'
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for mark in self.marks_x:
            x = self._across(mark)
            yield _stroke([(x, TOP), (x, bottom)], GRID)
            yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{mark:,.10g}</text>'
        for mark in self.marks_y:
            y = self._up(mark)
            yield _stroke([(LEFT, y), (right, y)], GRID)
            yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{mark:,.10g}</text>'
        middle = (LEFT + right) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(self.across)}</text>'
        height = (TOP + bottom) / 2
        yield (
            f'<text x="16" y="{height}" text-anchor="middle" '
            f'transform="rotate(-90 16 {height})">{escape(self.up)}</text>'
        )

    def _curves(self) -> Iterator[str]:
        taken: list[float] = []
        for line, colour in zip(self.lines, COLOURS, strict=False):
            inside = [point for point in line.points if self.y[0] <= point[1] <= self.y[1]]
            if not inside:
                continue
            path = [(self._across(x), self._up(y)) for x, y in inside]
            yield _stroke(path, colour, 4 if line.is_bold else 1.8)
            y = _free(path[-1][1], taken)
            taken.append(y)
            name = escape(line.name)
            yield f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4}" fill="{colour}">{name}</text>'

    def _across(self, value: float) -> float:
        return round(LEFT + _share(value, self.x) * (WIDTH - LEFT - RIGHT), 1)

    def _up(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - _share(value, self.y) * (HEIGHT - TOP - BOTTOM), 1)


def _share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return math.log(value / low) / math.log(high / low)


def _free(y: float, taken: Sequence[float]) -> float:
    """The nearest height below where no other name is."""
    while any(abs(y - other) < 15 for other in taken):
        y += 1
    return y


def _stroke(path: Sequence[tuple[float, float]], colour: str, width: float = 1) -> str:
    points = " ".join(f"{x},{y}" for x, y in path)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
