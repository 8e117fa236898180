"""Surfaces are thin: they import the api and layer 0, and nothing between."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import stepkeep

ROOT = Path(stepkeep.__file__).parent
LAYER_0 = {
    *(
        "errors",
        "typed",
        "logs",
        "model",
        "text",
        "fixes",
        "secrets",
        "yaml_lines",
        "processes",
        "forks",
        "access",
    ),
    "__version__",
    "guarded_server",
}
SURFACES = ("cli", "mcp", "hooks", "web", "adapters")
LAUNCHED = {"cli": {"mcp", "hooks", "web", "adapters"}}
"""The command line starts the servers and the hooks, and runs the import that an adapter brings along."""

BY_NAME = {"cli/app.py"}
"""Tables of modules that are imported when they are needed; a name in them is that of a module of the same package."""


def imported(path: Path) -> Iterator[str]:
    """Every module of ours that a module imports, also inside functions and for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports name their module in full"
            if node.module == "stepkeep":
                yield from (f"stepkeep.{each.name}" for each in node.names)
            else:
                yield node.module or ""
        elif isinstance(node, ast.Call) and _name(node.func) == "import_module":
            yield "stepkeep.(by name)"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def below_the_api(surface: str, path: Path) -> list[str]:
    """What a module of a surface imports and should not."""
    allowed = LAYER_0 | LAUNCHED.get(surface, set()) | {surface}
    if path.relative_to(ROOT).as_posix() in BY_NAME:
        allowed |= {"(by name)"}
    found = []
    for module in imported(path):
        first, _, rest = module.partition(".")
        package, _, inner = rest.partition(".")
        if first != "stepkeep" or not package or package in allowed:
            continue
        if package == "api" and (not inner or (surface == "adapters" and inner == "extension")):
            continue
        found.append(module)
    return sorted(found)


def test_surfaces_import_the_api_and_layer_0_only() -> None:
    """Commands, server and hooks use `stepkeep.api`; adapters beside it `stepkeep.api.extension`."""
    wrong = {
        path.relative_to(ROOT).as_posix(): below
        for surface in SURFACES
        for path in sorted((ROOT / surface).rglob("*.py"))
        if (below := below_the_api(surface, path))
    }
    assert wrong == {}
