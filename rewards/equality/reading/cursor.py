"""A place in the tokens of one expression: look, take, insist."""

from __future__ import annotations

from gtpo.rewards.equality.reading.tokens import NotMathematics, tokenize


class Cursor:
    """The tokens of a text and how far they have been read. What is missing raises NotMathematics."""

    def __init__(self, text: str) -> None:
        self.tokens = tokenize(text)
        self.at = 0

    def _peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def _kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def _take(self, *expected: str) -> bool:
        if self._peek() in expected and self.at < len(self.tokens):
            self.at += 1
            return True
        return False

    def _need(self, expected: str) -> None:
        if not self._take(expected):
            raise NotMathematics(f"expected {expected!r}, found {self._peek()!r}")

    def _raw_group(self) -> str:
        self._need("{")
        depth = 1
        parts: list[str] = []
        while True:
            if self.at >= len(self.tokens):
                raise NotMathematics("an open brace")
            token = self._peek()
            self.at += 1
            depth += (token == "{") - (token == "}")
            if depth == 0:
                return "".join(parts)
            parts.append(token)

    def _environment(self) -> str:
        if self._kind() != "env":
            raise NotMathematics("an environment without a name")
        self.at += 1
        return self.tokens[self.at - 1][1]
