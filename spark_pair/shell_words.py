"""Reading a printed shell command without running it: its words, or why they are not known.

Only what bash gives the same words for everywhere is read. Pure, standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import SparkPairError

_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*)")
_ESCAPES = {
    "n": b"\n", "t": b"\t", "r": b"\r", "a": b"\a", "b": b"\b", "e": b"\x1b", "E": b"\x1b",
    "f": b"\f", "v": b"\v", "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
_NUMBER = re.compile(r"x([0-9A-Fa-f]{1,2})|([0-7]{1,3})")
_STRANGE = frozenset(";|()<>*?[{#`!")
"""Unquoted, they make of the words something that is known only where they are run."""


class ShellWordsError(SparkPairError):
    """A command whose words cannot be told; the message says why."""


def commands(line: str, variables: Mapping[str, str]) -> list[list[str]]:
    """The words of each command of a line whose commands are joined by `&&`.

    `variables` are those whose value is known where the line is run. Raises ShellWordsError.
    """
    return _Reader(line, variables).read()


class _Reader:
    def __init__(self, line: str, variables: Mapping[str, str]) -> None:
        self.line = line
        self.variables = variables
        self.at = 0
        self.word: bytearray | None = None
        self.found: list[list[str]] = [[]]

    def read(self) -> list[list[str]]:
        while self.at < len(self.line):
            self._step(self._take())
        self._end_word()
        if not all(self.found):
            raise ShellWordsError("a command is missing beside '&&'")
        return self.found

    def _step(self, char: str) -> None:
        if char in " \t\n":
            self._end_word()
        elif char == "\\":
            following = self._take("a backslash at its end")
            if following != "\n":
                self._add(following)
        elif char == "'":
            self._add(self._until("'"))
        elif char == '"':
            self._double()
        elif char == "$":
            self._dollar()
        elif char == "~" and self.word is None:
            self._tilde()
        elif char == "&":
            if self._take("a single '&'") != "&":
                raise ShellWordsError("it holds a single '&'")
            self._end_word()
            self.found.append([])
        elif char in _STRANGE and not (char in "#!" and self.word is not None):
            raise ShellWordsError(f"it holds an unquoted {char!r}")
        else:
            self._add(char)

    def _take(self, missing: str = "nothing") -> str:
        if self.at >= len(self.line):
            raise ShellWordsError(f"it ends with {missing}")
        self.at += 1
        return self.line[self.at - 1]

    def _add(self, text: str | bytes) -> None:
        if self.word is None:
            self.word = bytearray()
        self.word += text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")

    def _end_word(self) -> None:
        if self.word is not None:
            self.found[-1].append(self.word.decode("utf-8", "replace"))
            self.word = None

    def _until(self, quote: str) -> str:
        end = self.line.find(quote, self.at)
        if end < 0:
            raise ShellWordsError(f"a quote ({quote}) is not closed")
        text = self.line[self.at : end]
        self.at = end + 1
        return text

    def _double(self) -> None:
        self._add("")
        while (char := self._take("an open quote")) != '"':
            if char == "\\":
                following = self._take("an open quote")
                if following != "\n":
                    self._add(following if following in '$`"\\' else char + following)
            elif char == "$":
                self._variable()
            elif char == "`":
                raise ShellWordsError("it holds a command in backticks")
            else:
                self._add(char)

    def _dollar(self) -> None:
        if self.line.startswith("'", self.at):
            self.at += 1
            self._ansi()
        else:
            self._variable()

    def _variable(self) -> None:
        match = _NAME.match(self.line, self.at)
        name = (match[1] or match[2]) if match else ""
        if match is None or name not in self.variables:
            what = f"${name}" if name else "a '$'"
            raise ShellWordsError(f"it holds {what}, whose value is known only where it is run")
        self._add(self.variables[name])
        self.at = match.end()

    def _tilde(self) -> None:
        alone = self.at >= len(self.line) or self.line[self.at] in "/ \t\n"
        if not alone or "HOME" not in self.variables:
            raise ShellWordsError("it holds a '~', whose value is known only where it is run")
        self._add(self.variables["HOME"])

    def _ansi(self) -> None:
        self._add("")
        while (char := self._take("an open quote")) != "'":
            if char != "\\":
                self._add(char)
                continue
            if number := _NUMBER.match(self.line, self.at):
                self.at = number.end()
                value = int(number[1], 16) if number[1] else int(number[2], 8)
                self._add(bytes([value & 0xFF]))
                continue
            escape = self._take("an open quote")
            if escape not in _ESCAPES:
                raise ShellWordsError(f"it holds the escape \\{escape}")
            self._add(_ESCAPES[escape])
