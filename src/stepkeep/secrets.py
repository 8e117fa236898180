"""Secrets: what looks like one, by name and by shape, and texts without them. The one detector of the product.

`is_secret_name` judges a name, `has_secret` a value, `without_secrets` hides what looks like a secret in a text of
unknown origin, `url_without_password` those of a URL, and `Redactor` hides secrets that are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from typing import Any, Final

import msgspec

from stepkeep.text import shortened

HIDDEN: Final = "(hidden)"
MIN_SECRET: Final = 4
"""Shorter values are not looked for in texts: `1` or `yes` would be blanked out everywhere."""

# --- by name ---------------------------------------------------------------------------------------------------

_NAME: Final = r"""secret(?!ar) | passw | passphrase | passcode | token | credential
    | (?:api|access|private)_?key
    | (?:^|_)(?:auth|authorization|bearer|pwd|creds?)(?:_|$)
    | [a-z0-9]_(?:key|pat)(?:_?v?\d+)?$                # openai_key, github_pat, OPENAI_KEY_2
    """
_NOT_SECRET: Final = r"""(?:max|min|num|total|prompt|completion|input|output|context|cached|reasoning|used|new)_tokens
    | tokens?_(?:count|limit|budget|usage|used|per_\w+)$ | token(?:iz|is)
    | (?:^|_)(?:primary|foreign|sort|partition|cache|public|idempotency|session|row|group|index|lookup|unique|shard
        |object|json|dict|map|project|issue|order|merge|routing|registry|config|state|storage|bucket|tag|run|step
        )_key(?:_?v?\d+)?$
    """
"""Counts of a language model's tokens, and keys that open nothing."""


@cache
def is_secret_name(name: str) -> bool:
    """Whether a variable, field or option of that name holds something that must not be stored or shown."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("-", "_").replace(".", "_")).lower()
    words = re.sub(_NOT_SECRET, "_", words, flags=re.VERBOSE)
    return re.search(_NAME, words, re.VERBOSE) is not None


# --- by shape --------------------------------------------------------------------------------------------------

_SHAPE: Final = r"""\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}           # keys of model and payment services
      | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
      | \bglpat-[\w-]{16,}
      | \bxox[abeprs]-[A-Za-z0-9-]{10,}
      | \b(?:AKIA|ASIA)[A-Z0-9]{12,}\b
      | \bAIza[\w-]{30,}
      | \beyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]*)?             # signed tokens with three parts
      | -----BEGIN[^-]*PRIVATE\ KEY-----[\s\S]*?(?:-----END[^-]*-----|\Z)
      | (?<=://)[^\s/:@]*:[^\s/@]+(?=@)                 # user and password in an address
      | (?<=[Bb]earer\ )[\w.~+/-]{16,}=*
    """
_NAMED: Final = r"""(
        (?:[\w-]*(?:secret|passw|passphrase|passcode|token|credential|key|auth|bearer|pwd|cred|_pat)[\w-]*)
            ["']?\s*[=:]\s*["']?(?:bearer\s+|basic\s+)?
        | --?[\w-]*(?:secret|passw|passphrase|passcode|token|credential|key|auth|pwd)[\w-]*\s+["']?   # an option
      )([^\s"',;&|]{4,})"""
_SIGNS: Final = (
    *("secret", "passw", "passphrase", "passcode", "token", "cred", "key", "auth", "bearer", "pwd", "_pat"),
    *("://", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-"),
    *("xox", "akia", "asia", "aiza", "eyj"),
)
"""One of these is in every text with a secret. Compiling the patterns takes longer than the rest of a hook."""


def has_secret(value: object) -> bool:
    """Whether a text, or something in a list or mapping, looks like a secret, or was one before it was hidden."""
    if isinstance(value, str):
        return HIDDEN in value or bool(shaped_secrets(value))
    if isinstance(value, dict):
        return any(is_secret_name(str(key)) and bool(item) for key, item in value.items()) or any(
            map(has_secret, value.values())
        )
    return isinstance(value, list | tuple) and any(map(has_secret, value))


def shaped_secrets(text: str) -> list[str]:
    """What in a text has the shape of a secret."""
    if not _may_have_secret(text):
        return []
    return [match[0] for match in re.finditer(_SHAPE, text, re.VERBOSE)]


def without_secrets(text: str) -> str:
    """The text with values hidden that have the shape of a secret, or stand beside the name of one."""
    if not _may_have_secret(text):
        return text
    text = re.sub(_SHAPE, HIDDEN, text, flags=re.VERBOSE)
    return re.sub(_NAMED, _without_named, text, flags=re.VERBOSE | re.IGNORECASE)


def _without_named(match: re.Match[str]) -> str:
    name = re.match(r"-*([\w-]*)", match[1])
    is_secret = name is not None and is_secret_name(name[1])
    return match[1] + (HIDDEN if is_secret else without_secrets(match[2]))


def _may_have_secret(text: str) -> bool:
    small = text.lower()
    return "-----begin" in small or any(sign in small for sign in _SIGNS)


# --- in URLs ---------------------------------------------------------------------------------------------------

_OPTION: Final = r"(?P<start>[?&])(?P<name>[^=&]*)=[^&]*"
_WORD: Final = r"(?P<start>(?:^|\s)\s*)(?P<name>\w+)\s*=\s*(?:'(?:[^'\\]|\\.)*'?|\S*)"
"""A part of the other form that libpq has for the same: `host=h password='a b'`."""

_SERVER: Final = r"\s*(?:[\w+.-]*://|(?!sqlite:|files:)[\w+.-]+:/*)"
"""How an address of a server begins, also with too few slashes. A file may have any name."""


def url_password(url: str) -> str:
    """The password in the login of a URL, also of one that is not quite right; empty if there is none."""
    begin = re.match(_SERVER, url)
    login, at, _ = url[begin.end() :].rpartition("@") if begin else ("", "", "")
    user, colon, password = login.partition(":")
    if not (at and colon) or re.search("[/?]", user):
        return ""
    # `host:5432/db?user=a@b` has a port there; anything else that comes before an @ may be a password.
    is_port = re.fullmatch(r"\d+(?:,[^/?@]*)?(?:/[^?@]*)?\?\w+=.*", password, re.DOTALL)
    return "" if is_port else password


def url_without_password(url: str, *, mark: str = "***") -> str:
    """A URL as it may be shown: the mark, or nothing at all, stands for its password and for secret options."""
    password = url_password(url)
    if password:
        url = url.replace(f":{password}@", f":{mark}@" if mark else "@", 1)
    for form in (_OPTION, _WORD):
        url = re.sub(form, lambda option: _without_secret(option, mark), url)
    return url


def _without_secret(option: re.Match[str], mark: str) -> str:
    from urllib.parse import unquote  # nearly every URL has no options

    if not is_secret_name(unquote(option["name"])):
        return option[0]
    return f"{option['start']}{option['name']}={mark}" if mark else option["start"]


def safe_text(value: object, limit: int) -> str:
    """A text of any origin: valid, without secrets, cut to a length. Anything but a text becomes an empty one."""
    if not isinstance(value, str):
        return ""
    text = value[: limit * 4 + 4096].replace("\0", "").encode("utf-8", "replace").decode()
    return shortened(without_secrets(text).strip(), limit)


# --- known secrets ---------------------------------------------------------------------------------------------

_SHORT: Final = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""What JSON writes after a backslash for a character."""

_BACKSLASHES: Final = r"(?:\\|(?<=\\)u005[cC])*+"
"""Any number of them, also written by their number."""


def texts_of_secret(value: Any) -> Iterator[str]:
    """The texts that give a secret away: its own, and of a list or mapping those of everything in it.

    The keys of a mapping are names, which the file refers to. `true` and `false` are left out: they say nothing.
    """
    if isinstance(value, dict | list):
        yield msgspec.json.encode(value).decode()
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_of_secret(item)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield msgspec.json.encode(value).decode()
        yield str(value)


class Redactor:
    """Replaces known secrets by `(hidden)`, the longest first, and each line of one that has several.

    A secret is found as it is, and as JSON may write it, however much of it is escaped.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
        found = {part for part in parts if len(part.strip()) >= MIN_SECRET}
        forms = {form for part in found for form in (part, *_in_json(part))}
        self._plain = sorted(found, key=len, reverse=True)
        self._secrets = tuple(sorted(forms, key=len, reverse=True))
        self._encoded = tuple(_encoded(form) for form in self._secrets)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        if "\\" in text:
            for pattern in self._escaped:
                text = re.sub(pattern, HIDDEN, text)
        return text

    def data(self, data: bytes, *, starts_inside: bool = False, ends_inside: bool = False) -> bytes:
        """Bytes without secrets. Where they were cut out of more, half a secret at that end goes too."""
        for secret in self._encoded:
            data = data.replace(secret, HIDDEN.encode())
        if b"\\" in data:
            for pattern in self._escaped:
                data = re.sub(_encoded(pattern), HIDDEN.encode(), data)
        halves = [(each, min(len(data), len(each) - 1)) for each in self._encoded]
        if ends_inside and (size := max((_overlap(data, each, most) for each, most in halves), default=0)):
            data = data[:-size] + HIDDEN.encode()
        if starts_inside and (size := max((_overlap(each, data, most) for each, most in halves), default=0)):
            data = HIDDEN.encode() + data[size:]
        return data

    def value(self, value: Any) -> Any:
        """A value with its texts redacted. Of any other kind, one that shows a secret is hidden whole."""
        if value is None or isinstance(value, bool) or not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return type(value)(self.data(bytes(value)))
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(self.value(item) for item in value)
        return HIDDEN if self._is_shown_by(value) else value

    def _is_shown_by(self, value: object) -> bool:
        try:
            texts = (str(value), msgspec.json.encode(value, enc_hook=str).decode())
        except ValueError:  # a number with more digits than Python writes out
            return True
        return any(self.text(text) != text for text in texts)

    @cached_property
    def _escaped(self) -> tuple[str, ...]:
        # Few characters beside backslashes would be found everywhere.
        return tuple(
            _however_escaped(secret)
            for secret in self._plain
            if len(secret.replace("\\", "").strip()) >= MIN_SECRET
        )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _in_json(text: str) -> Iterator[str]:
    """A text as it stands between the quotes of a JSON text."""
    import json  # only what knows secrets needs it

    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _however_escaped(secret: str) -> str:
    """A pattern for a secret in JSON, or in JSON within JSON, with any of its characters escaped.

    Every character may have backslashes before it, those of the secret among them. A run of them is taken whole and
    never given back, so that no text makes the search slow.
    """
    characters = (_character(char) for char in secret if char != "\\")
    return r"(?<!\\)" + "".join(f"{_BACKSLASHES}(?:{character})" for character in characters)


def _character(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    codes = [f"u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
    ways = [re.escape(char), f"(?i:{_BACKSLASHES.join(codes)})"]
    return "|".join([*ways, _SHORT[char]] if char in _SHORT else ways)


def _overlap(before: bytes, after: bytes, most: int) -> int:
    """How many bytes, up to a number, the end of one and the beginning of another have in common."""
    return next((size for size in range(most, 0, -1) if before.endswith(after[:size])), 0)
