"""What a stand-in says: deterministic words derived from the prompt, in place of a model.

It cannot show quality, tokenisation or sampling. It does show what matters to a caller that
compares replies: the same request gives the same text, another prompt or seed gives another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

_TEXT = (
    "the cable joins two machines and each holds half of every layer so a token needs both "
    "while one waits other works memory fills slowly then settles light turns green again "
    "quiet hours suit long answers but short questions come first when people gather around "
    "table morning rain falls outside window where birds rest under old roof near river bridge"
)
_WORDS = tuple(_TEXT.split())

LONG_MARKER = "[[long]]"
"""A prompt that holds this is answered slowly, up to its whole ``max_tokens``."""

COUNT_MARKER = "count"
"""A prompt that asks to count is answered at full speed, up to its whole ``max_tokens``."""

USUAL_WORDS = 24
USUAL_REASONING_WORDS = 12
FAST_TOKENS_PER_SECOND = 200.0
LONG_TOKENS_PER_SECOND = 20.0


@dataclass(frozen=True)
class Speech:
    """A whole reply, decided before it is spoken. One list element stands for one token."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    finish: str = "stop"
    silent_tokens: int = 0
    """Tokens that count in ``usage`` and carry no text, as an end-of-text token does."""
    tokens_per_second: float = FAST_TOKENS_PER_SECOND

    @property
    def tokens(self) -> int:
        """Tokens of the reply as ``usage.completion_tokens`` counts them."""
        return len(self.reasoning) + len(self.content) + self.silent_tokens


def count_tokens(text: str) -> int:
    """About four bytes of text a token; at least one."""
    return max(1, len(text.encode("utf-8")) // 4)


def _words(key: str) -> Iterator[str]:
    block = 0
    while True:
        for byte in hashlib.sha256(f"{key}/{block}".encode()).digest():
            yield _WORDS[byte % len(_WORDS)]
        block += 1


def _spoken(words: Iterator[str], amount: int) -> list[str]:
    return [("" if index == 0 else " ") + next(words) for index in range(amount)]


def compose(prompt: str, *, max_tokens: int, thinking: bool, seed: int | None) -> Speech:
    """Decide the reply to a prompt. ``max_tokens`` must be positive."""
    key = prompt if seed is None else f"{seed}/{prompt}"
    endless = LONG_MARKER in prompt or COUNT_MARKER in prompt.lower()
    rate = LONG_TOKENS_PER_SECOND if LONG_MARKER in prompt else FAST_TOKENS_PER_SECOND
    reasoning: list[str] = []
    if thinking:
        reasoning = _spoken(_words(f"reasoning/{key}"), min(USUAL_REASONING_WORDS, max_tokens))
    left = max_tokens - len(reasoning)
    if endless and LONG_MARKER not in prompt:
        wanted = [("" if number == 1 else " ") + str(number) for number in range(1, left + 1)]
    elif endless:
        wanted = _spoken(_words(key), left)
    elif "reply with ok" in prompt.lower():
        wanted = ["OK", "."]
    else:
        wanted = _spoken(_words(key), USUAL_WORDS)
    cut = endless or len(wanted) > left
    return Speech(
        reasoning=reasoning,
        content=wanted[:left],
        finish="length" if cut else "stop",
        tokens_per_second=rate,
    )


def instant_stop() -> Speech:
    """The reply that is over with its first token: nothing said, ``finish_reason`` "stop"."""
    return Speech(silent_tokens=1)


def empty(max_tokens: int) -> Speech:
    """Tokens are counted but none carries text."""
    return Speech(silent_tokens=min(8, max_tokens))


def repeated_character(max_tokens: int) -> Speech:
    """The text of a collapsed model."""
    return Speech(content=["!"] * min(USUAL_WORDS, max_tokens), finish="length")
