"""Whether two statements say the opposite of each other. Pure, and modest: it reads words, not meaning.

Two statements contradict each other if they have the same words and only one of them is negated. Articles, the
auxiliary *do* and a final *s* do not count, so `The cache expires` contradicts `The cache doesn't expire`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORD: Final = re.compile(r"[\w.+-]*\w(?:['’]\w+)?")
_NEGATIONS: Final = frozenset({"not", "no", "never"})
_SPLIT: Final = {"cannot": "can", "can't": "can", "won't": "will", "shan't": "shall"}
_IGNORED: Final = frozenset({"a", "an", "the", "do", "does", "did", "that", "it's", "there"})


@lru_cache(maxsize=10_000)
def meaning(statement: str) -> tuple[tuple[str, ...], bool]:
    """The words that count, in their order, and whether they are negated."""
    words: list[str] = []
    is_negated = False
    for word in _WORD.findall(statement.lower().replace("’", "'")):
        plain, negates = _plain(word)
        is_negated ^= negates
        if plain:
            words.append(plain)
    return tuple(words), is_negated


def _plain(word: str) -> tuple[str, bool]:
    if word in _NEGATIONS:
        return "", True
    if word in _SPLIT:
        return _SPLIT[word], True
    is_negated = word.endswith("n't")
    base = word.removesuffix("n't")
    return ("" if base in _IGNORED else _without_s(base)), is_negated


def _without_s(word: str) -> str:
    is_plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if is_plural else word


def contradict(first: str, second: str) -> bool:
    """Whether two statements say the opposite."""
    (words, is_negated), (other_words, is_other_negated) = meaning(first), meaning(second)
    return bool(words) and words == other_words and is_negated != is_other_negated
