"""A parser's place in a list of tokens, for expressions and PartiQL."""

from collections.abc import Sequence

Token = tuple[str, str]  # kind and text


class Tokens:
    """Reads tokens from left to right."""

    def __init__(self, tokens: Sequence[Token], *, end: str = "") -> None:
        self._tokens = tokens
        self._end: Token = ("end", end)
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else self._end

    def next(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    def take(self, sign: str) -> bool:
        """Take a sign, if it follows."""
        if self.peek() == ("sign", sign):
            self._at += 1
            return True
        return False
