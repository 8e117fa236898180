"""A store with something for every page."""

from __future__ import annotations

from pathlib import Path

import stepkeep

STATE = {
    "messages": [
        {"role": "user", "content": "Which database?"},
        {
            "role": "assistant",
            "content": "PostgreSQL",
            "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}],
        },
    ],
    "scores": {"a": 1, "b": 2.5},
    "note": "the quick brown fox",
}


def fill(url: str, folder: Path) -> dict[str, str]:
    """Save what the pages show; the ids of some checkpoints by name."""
    tree = folder / "tree"
    tree.mkdir()
    (tree / "app.py").write_text("print('one')\n")
    with stepkeep.open(url) as store:
        run = store.session("research", project="atlas", profile="archive", metadata={"task": "compare"})
        first = run.save({**STATE, "note": "the slow brown fox"}, step=1, message="plan made", tags=["plan"])
        second = run.save(STATE, step=2, message="searched", details={"why": "because"})
        run.branches.fork(first.id, "other")
        run.save({"n": 1}, message="on the other branch")
        run.branches.switch("main")
        last = run.save({**STATE, "done": True}, step=3, message="report", trigger="manual")
        files = store.session("files")
        before = files.save({"turn": 1}, workspace=tree)
        (tree / "app.py").write_text("print('two')\n")
        (tree / "new.txt").write_text("new\n")
        after = files.save({"turn": 2}, workspace=tree)
        store.execute("deploy", [{"id": "build", "description": "Build"}, {"id": "publish"}], _publish)
        store.execute("mail", [{"id": "send", "ask": "Send it to 3 people?"}], _publish)
        store.session("done").save({"n": 1})
        store.get("done").complete()
    return {
        "first": first.id,
        "second": second.id,
        "last": last.id,
        "before": before.id,
        "after": after.id,
    }


def _publish(context: stepkeep.StepContext) -> str:
    if context.step.id == "publish":
        raise RuntimeError("the token has expired")
    return f"output of {context.step.id}"
