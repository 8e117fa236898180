"""The document around the pages: one element, one import map, and the policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"

VENDORED: Final = {
    "preact": "vendor/preact.mjs",
    "preact/hooks": "vendor/preact-hooks.mjs",
    "htm": "vendor/htm.mjs",
}
OWN: Final = (
    *(
        "actions",
        "app",
        "checkpoint",
        "compare",
        "data",
        "derived",
        "differences",
        "find",
        "parts",
        "runs",
        "sessions",
        "store",
        "text",
    ),
    *("timeline", "tree"),
)
MODULES: Final = {**VENDORED, **{f"stepkeep/{name}": f"{name}.js" for name in OWN}}
"""The modules of the pages: the name by which they import each other, and the file."""

STYLE: Final = "style.css"
TYPES: Final = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}

ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cg fill='none' "
    "stroke='%230969da' stroke-width='2'%3E%3Cpath d='M5 4v8M5 8c0-2 6 0 6-4'/%3E%3C/g%3E%3Ccircle cx='5' cy='3' r='2' "
    "fill='%230969da'/%3E%3Ccircle cx='5' cy='13' r='2' fill='%230969da'/%3E%3Ccircle cx='11' cy='3' r='2' "
    "fill='%238250df'/%3E%3C/svg%3E"
)


@cache
def static_files() -> Mapping[str, bytes]:
    """Everything that is sent as it is, by name: no name from a request ever reaches the disk."""
    return {name: (STATIC / name).read_bytes() for name in (STYLE, *MODULES.values())}


def served_page(about: Mapping[str, object]) -> tuple[str, str]:
    """The document that the server sends, and its policy. `about` is what pages need to know of the server."""
    imports = _import_map({name: f"./static/{file}" for name, file in MODULES.items()})
    policy = _policy(f"'self' {_hash(imports)}", style="'self'", connect="'self'")
    policy += "; frame-ancestors 'none'"  # a browser ignores it in a document
    return _document(
        f'<link rel="stylesheet" href="./static/{STYLE}">', imports, json.dumps({"about": about})
    ), policy


def file_page(title: str, encoded: str) -> str:
    """The document of one file that holds everything: modules, style, and the answers as JSON text `encoded`."""
    files = static_files()
    imports = _import_map({name: _data_url(files[file]) for name, file in MODULES.items()})
    style = files[STYLE].decode()
    policy = _policy(f"{_hash(imports)} {_hash(_START)} data:", style=_hash(style), connect="'none'")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}"><style>{style}</style>'
    )
    return _document(head, imports, encoded, title=title, is_inline=True)


_START: Final = 'import "stepkeep/app";'


def _document(
    head: str, imports: str, embedded: str, *, title: str = "Stepkeep", is_inline: bool = False
) -> str:
    # Nothing in the JSON may end the element it is in.
    embedded = embedded.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    start = f">{_START}" if is_inline else ' src="./static/app.js">'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{head}<title>{html.escape(title)}</title><link rel="icon" href="{ICON}">'
        f'<script type="importmap">{imports}</script></head><body><div id="app"></div>'
        "<noscript>These pages are made by scripts, which this browser does not run.</noscript>"
        f'<script type="application/json" id="embedded">{embedded}</script>'
        f'<script type="module"{start}</script></body></html>'
    )


def _import_map(imports: Mapping[str, str]) -> str:
    return json.dumps({"imports": imports}, separators=(",", ":"))


def _data_url(content: bytes) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(content).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _policy(script: str, *, style: str, connect: str) -> str:
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
