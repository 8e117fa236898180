"""A script that goes on where it was stopped: `python examples/script.py [STORE] [--crash]`.

Run it with `--crash`, and it kills itself in its second step. Run it again without, and only what is left is done.
Run it once more, and nothing is.
"""

from __future__ import annotations

import os
import signal
import sys

import stepkeep

TEXTS = {
    "a.txt": "what was saved is never lost",
    "b.txt": "and comes back",
    "c.txt": "exactly as it was",
}


def fetch(name: str) -> str:
    print(f"fetching {name}", flush=True)
    return TEXTS[name]


def count(texts: list[str], *, crash: bool = False) -> int:
    print("counting", flush=True)
    if crash:
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(len(text.split()) for text in texts)


def main(store_path: str, *, crash: bool) -> None:
    with stepkeep.open(store_path) as store, store.run("words") as run:
        texts = [run.step(f"fetch {name}", fetch, name) for name in TEXTS]
        # Whether it crashes is not what the step depends on: only the texts are compared.
        words = run.step("count", count, texts, crash=crash, key=texts)
    print(f"words: {words}")


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    main(paths[0] if paths else "words.db", crash="--crash" in sys.argv)
