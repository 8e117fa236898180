"""A secret in a workflow file is in no byte of the store and of what is printed, whatever it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepkeep
from tests import interpreter

NAMES = [
    *("openai_key", "OPENAI_KEY", "openai_api_key", "aws_secret", "github_pat"),
    *("password", "passwd", "client_secret", "bearer", "private_key"),
]
NAMED = {name: f"plain-{number:04}-value-of-{name}" for number, name in enumerate(NAMES)}
SHAPED = {
    "model": "sk-proj-" + "a1B2c3D4" * 5,
    "forge": "ghp_" + "a1B2c3D4" * 5,
    "chat": "xoxb-123456789012-abcdefABCDEF",
    "cloud": "AKIA" + "IOSFODNN7EXAMPLE",
    "signed": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEAx7\n-----END RSA PRIVATE KEY-----\n",
    "address": "https://me:hunter22@example.org/x",
}
PLAIN = {
    "total_tokens": 12345,
    "max_tokens": 4096,
    "key": "value-of-key-1",
    "monkey": "banana-12",
    "keyboard": "qwerty-12",
    "tokenizer": "cl100k_base",
}


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "stepkeep", "--store", f"sqlite:{folder / 'store.db'}", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        check=False,
    )


def _all_bytes(folder: Path) -> bytes:
    """Everything the store holds: its files as they are, and every body and blob in it decompressed."""
    files = [path.read_bytes() for path in folder.glob("store.db*")]
    with stepkeep.open(f"sqlite:{folder / 'store.db'}") as store:
        states = [
            json.dumps(store.session(session.key).at(header.id).state, default=str).encode()
            for session in store.sessions()
            for header in store.session(session.key).history()
        ]
    return b"\0".join([*files, *states])


@pytest.mark.full
def test_no_secret_of_a_workflow_is_stored_or_printed(tmp_path: Path) -> None:
    """Hidden by name or by shape in variables, file text and output, while steps get the value. What only sounds like a
    secret is kept."""
    variables = {**NAMED, **SHAPED, **PLAIN}
    uses = " ".join(f"${{vars.{name}}}" for name in variables)
    workflow = {
        "name": "secrets",
        "vars": variables,
        "env": {"SERVICE_KEY": "env-0001-literal-value"},
        "steps": [
            {
                "id": "show",
                "shell": f"printf '%s\\n' {uses}; echo $SERVICE_KEY; printf %s ${{vars.openai_key}} | wc -c",
            },
            {"id": "fail", "shell": "echo ${vars.model} >&2; exit 1"},
        ],
    }
    (tmp_path / "flow.yaml").write_text(json.dumps(workflow, indent=1), encoding="utf-8")
    ran = _run(tmp_path, "run", "flow.yaml", "--session", "s")
    assert ran.returncode == 1, ran.stderr
    outputs = [
        ran,
        *(_run(tmp_path, *words) for words in (("show", "s"), ("show", "s", "--json"), ("log", "s"))),
    ]
    outputs += [
        _run(tmp_path, "show", "s", "--raw"),
        _run(tmp_path, "status", "s"),
        _run(tmp_path, "export", "s"),
    ]
    everything = b"\0".join([_all_bytes(tmp_path), *(each.stdout + each.stderr for each in outputs)])
    texts = [*NAMED.values(), *SHAPED.values(), "hunter22", "MIIEpAIBAAKCAQEAx7", "env-0001-literal-value"]
    assert [text for text in texts if text.encode() in everything] == []
    for name, value in PLAIN.items():
        assert str(value).encode() in everything, name
    assert f"{len(NAMED['openai_key'])}".encode() in everything


@pytest.mark.full
def test_a_given_value_that_looks_like_a_secret_is_not_stored_unasked(tmp_path: Path) -> None:
    """The file has to say whether it is one."""
    (tmp_path / "flow.yaml").write_text(
        "name: n\nvars: {where: x}\nsteps: [{shell: 'true'}]\n", encoding="utf-8"
    )
    done = _run(tmp_path, "run", "flow.yaml", "--var", f"where={SHAPED['address']}")
    assert done.returncode == 2
    assert b"holds what looks like a secret" in done.stderr
    assert b"hunter22" not in done.stderr
    text = "name: n\nvars: {where: {value: x, secret: false}}\nsteps: [{shell: 'true'}]\n"
    (tmp_path / "flow.yaml").write_text(text, encoding="utf-8")
    assert _run(tmp_path, "run", "flow.yaml", "--var", f"where={SHAPED['address']}").returncode == 0


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:hunter2@host/db",
        "POSTGRESQL://me:hunter2@host/db",
        " postgresql://me:hunter2@host/db",
        "postgresql://me:hun/ter2@host/db",
        "postgresql://me:hun?ter2@host/db",
        "postgresql://host:x/db?PASSWORD=hunter2",
        "mysql://host/db?sslpassword=hunter2",
        "postgresql:/me:hunter2@host/db",
        "postgresql:me:hunter2@host/db",
        "postgresql://me:hunter2@[::1/db",
        "postgresql://me:hun#ter2@host:x/db",
        "postgresql://me:hun@ter2@host:x/db",
        "postgresql://me:hun\tter2@host/db",
        "postgresql://me:%68unter2@host:x/db",
        "postgresql://me@127.0.0.1:1/db?pass%77ord=hunter2",
        "postgresql://me:hunter2@127.0.0.1:1,127.0.0.1:2/db",
        "host=127.0.0.1 port=1 password=hunter2",
        "host=127.0.0.1 password = 'hun ter2' x",
        "s3://me:hunter2@bucket/x",
        "s3://bucket/x?secret_access_key=hunter2",
    ],
)
@pytest.mark.parametrize(
    "command", [["list"], ["doctor"], ["config", "show"], ["import", "langgraph", "--from"]], ids=" ".join
)
def test_no_password_of_a_url_is_printed(tmp_path: Path, url: str, command: list[str]) -> None:
    """However a URL of a store is written, and whatever is wrong with it, its password is not repeated."""
    words = [*command, url] if command[-1] == "--from" else [*command, "--store", url]
    assert not _leaks(tmp_path, words, {})


@pytest.mark.full
@pytest.mark.parametrize("place", ["word", "variable", "file"])
@pytest.mark.parametrize("url", ["postgresql://me:hunter2@127.0.0.1:1/db", "postgresql:me:hunter2@host/db"])
def test_no_password_is_left_anywhere(tmp_path: Path, url: str, place: str) -> None:
    """Neither in an answer, a log or a trace, nor in a file or its name: whoever gives the URL."""
    for number, command in enumerate(COMMANDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        words, environment = list(command), dict[str, str]()
        if place == "word":
            words += ["--store", url]
        elif place == "variable":
            environment["STEPKEEP_STORE"] = url
        else:
            (folder / "stepkeep.yaml").write_text(f"store: {json.dumps(url)}\n", encoding="utf-8")
        assert not _leaks(folder, words, environment)


COMMANDS = (
    *(["doctor", "--json"], ["config", "show", "--json"], ["save", "s", "--state", "{}", "-v"]),
    *(["stats", "--json"], ["hooks", "status"], ["mcp"]),
)


def _leaks(folder: Path, words: list[str], environment: dict[str, str]) -> list[str]:
    """Where the password is after a command."""
    done = interpreter.stepkeep(*words, cwd=folder, env={"HOME": str(folder), **environment})
    said = done.stdout + done.stderr
    found = [said] if "ter2" in said or "Traceback" in said else []
    for path in folder.rglob("*"):
        is_given = path.name == "stepkeep.yaml"
        if "ter2" in str(path) or (path.is_file() and not is_given and b"ter2" in path.read_bytes()):
            found.append(str(path))
    return found
