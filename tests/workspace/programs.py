"""Programs that the tests run in processes of their own, to be killed or limited."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import interpreter

ROOT = Path(__file__).parents[2]

RESTORE = """
import sys, stepkeep
url, root, ref = sys.argv[1:4]
with stepkeep.open(url) as store:
    print("ready", flush=True)
    done = store.get("run").files.restore(ref, workspace=root)
    print(done.is_complete, [(each.path, each.reason) for each in done.failures], flush=True)
"""

LIMITED = """
import resource, signal, sys, stepkeep
url, root, ref, limit = sys.argv[1:5]
with stepkeep.open(url) as store:
    run = store.get("run")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    try:
        run.files.restore(ref, workspace=root)
    except stepkeep.BackendUnavailable as exc:
        print(exc.code)
"""

_AS_NOBODY = """
import os, sys, tempfile, stepkeep
url, root = sys.argv[1:3]
with tempfile.TemporaryDirectory() as warm, stepkeep.open("memory:") as store:
    run = store.session("run", workspace=warm)  # imports all that is needed, while it can be read
    run.files.restore(run.save(1).id)
os.setgid(65534)
os.setuid(65534)
"""

UNPRIVILEGED = (
    _AS_NOBODY
    + """
with stepkeep.open(url) as store:
    run = store.session("run", profile="archive")
    first = run.save(1, workspace=root)
    print(sorted((each.path, each.reason) for each in run.files.at().skipped), [each.path for each in run.files.at()])
    os.chmod(root + "/a", 0o644)
    open(root + "/a", "w").write("changed")
    run.save(2, workspace=root)
    os.chmod(root, 0o555)
    try:
        run.files.restore(first.id, workspace=root)
    except stepkeep.BackendUnavailable as exc:
        print(exc.code)
    os.chmod(root, 0o755)
    print(open(root + "/a").read())
"""
)


LOCKED = (
    _AS_NOBODY
    + """
with stepkeep.open(url) as store:
    run = store.session("run", profile="archive", workspace=root)
    first = run.save(1)
    open(root + "/f", "w").write("changed")
    os.chmod(root + "/locked", 0)
    run.save(2)
    done = run.files.restore(first.id)
    print([each.path for each in done.failures], [each.path for each in done.changes])
    os.chmod(root + "/locked", 0o755)
    done = run.files.undo()
    print(done.is_complete, [each.path for each in done.changes], open(root + "/locked/q").read())
"""
)


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run(program: str, *arguments: str) -> str:
    """Run a program to its end; what it printed."""
    done = interpreter.python("-c", program, *arguments, env=environment(), cwd=Path("/"))
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
