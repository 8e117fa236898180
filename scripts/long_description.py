"""The README as the package index shows it, made by hatchling when it builds.

The index has only the text: a relative picture or link would lead nowhere, and no place on the web is known yet that
holds them. Pictures are left out, links become their words.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # the tests read the text without building anything
    MetadataHookInterface = object

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")
READ_ON = re.compile(r"^## Read on\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""A list of pages, which is nothing without its links."""


INSTALL = re.compile(r"pip install ('?)\.(?: +# from a checkout;(?= ))?")


def long_description(readme: str) -> str:
    text = LINK.sub(r"\1", PICTURE.sub("", READ_ON.sub("", readme)))
    return INSTALL.sub(
        lambda match: f"pip install {match[1]}stepkeep" + "    #" * match[0].endswith(";"), text
    )


class LongDescription(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}
