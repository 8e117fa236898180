"""States that change step by step, as those of agents do: seeded, so that every run saves the same bytes.

A workload yields one state per step. It is the same object each time, changed in place, as a program would do:
whoever needs it later keeps a copy.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice
from typing import Any, Final, TypeAlias

State: TypeAlias = dict[str, Any]

SEED: Final = 20_240_229
_SYLLABLES: Final = tuple(
    re.findall(r"\w+", "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ver wi xo yan zer ing tion est")
)
_TOOLS: Final = ("search", "read_file", "run_tests", "fetch")


def _vocabulary(size: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3, 3, 4)))) for _ in range(size)]


_WORDS: Final = _vocabulary(6000)
# Few words are frequent and most are rare, as in prose: this sets how well the text compresses.
_WEIGHTS: Final = list(accumulate(1 / (rank + 8) for rank in range(len(_WORDS))))


def text(rng: random.Random, size: int) -> str:
    """Word-like text of about `size` characters that compresses about as well as prose."""
    words = rng.choices(_WORDS, cum_weights=_WEIGHTS, k=max(1, size // 6))
    return (" ".join(words)[:size]).capitalize() + "."


def _message(rng: random.Random, role: str, size: int, number: int) -> State:
    return {
        "id": f"msg_{rng.getrandbits(64):016x}",
        "role": role,
        "content": text(rng, size),
        "created": 1_700_000_000 + 7 * number,
    }


def conversation(seed: int = SEED) -> Iterator[State]:
    """Workload W: a conversation growing about 2 KB a step, with tool calls now and then, and counters."""
    rng = random.Random(seed)
    messages: list[State] = []
    state: State = {
        "agent": "researcher",
        "step": 0,
        "messages": messages,
        "tokens": {"input": 0, "output": 0},
        "cost": 0.0,
        "plan": [text(rng, 60) for _ in range(5)],
    }
    for step in count(1):
        messages.append(
            _message(rng, "user" if step % 3 == 1 else "assistant", rng.randint(1100, 1900), step)
        )
        if step % 4 == 0:
            messages[-1]["tool_calls"] = [_tool_call(rng)]
            messages.append(_message(rng, "tool", rng.randint(700, 1300), step))
        state["step"] = step
        state["tokens"]["input"] += rng.randint(300, 900)
        state["tokens"]["output"] += rng.randint(100, 500)
        state["cost"] = round(state["cost"] + rng.random() / 50, 6)
        yield state


def _tool_call(rng: random.Random) -> State:
    return {
        "id": f"call_{rng.getrandbits(48):012x}",
        "name": rng.choice(_TOOLS),
        "arguments": {"query": text(rng, 60), "limit": rng.randint(1, 50)},
    }


def sliding_window(seed: int = SEED) -> Iterator[State]:
    """The last 40 messages of a conversation: each step one is added and the oldest goes, about 70 KB."""
    rng = random.Random(seed)
    messages = [_message(rng, "assistant", rng.randint(1200, 2000), number) for number in range(40)]
    state: State = {"step": 0, "messages": messages}
    for step in count(1):
        messages.append(_message(rng, "assistant", rng.randint(1200, 2000), 40 + step))
        del messages[0]
        state["step"] = step
        yield state


def small_edits(seed: int = SEED) -> Iterator[State]:
    """A dict of 1 MB in which each step changes twenty values here and there."""
    rng = random.Random(seed)
    records = {
        f"item-{number:05d}": {"title": text(rng, 40), "score": rng.random(), "note": text(rng, 180)}
        for number in range(3600)
    }
    state: State = {"step": 0, "records": records}
    keys = list(records)
    for step in count(1):
        for key in rng.sample(keys, 20):
            records[key]["score"] = rng.random()
        records[rng.choice(keys)]["note"] = text(rng, 180)
        state["step"] = step
        yield state


def tiny(seed: int = SEED) -> Iterator[State]:
    """A few hundred bytes of which every value changes at each step."""
    rng = random.Random(seed)
    for _ in count(1):
        yield {
            "token": f"{rng.getrandbits(256):064x}",
            "position": [rng.random() for _ in range(6)],
            "label": text(rng, 80),
        }


def large_constant(seed: int = SEED) -> Iterator[State]:
    """Documents of 800 KB that never change, and beside them a scratchpad and counters that do."""
    rng = random.Random(seed)
    state: State = {
        "documents": [{"name": f"doc-{number}", "text": text(rng, 20_000)} for number in range(40)],
        "step": 0,
        "scratch": "",
        "seen": [],
    }
    for step in count(1):
        state["step"] = step
        state["scratch"] = text(rng, 800)
        state["seen"].append(rng.randrange(40))
        yield state


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    states: Callable[[], Iterator[State]]

    def take(self, steps: int) -> Iterator[State]:
        return islice(self.states(), steps)


W: Final = Workload("conversation", "W: conversation growing 2 KB a step", conversation)

WORKLOADS: Final = (
    W,
    Workload("window", "sliding window of 40 messages", sliding_window),
    Workload("edits", "twenty small edits in a 1 MB dict", small_edits),
    Workload("tiny", "tiny state changing wholly", tiny),
    Workload("constant", "800 KB unchanged, small changes", large_constant),
)


def size_of(state: State) -> int:
    """The bytes of a state as compact JSON: what all ratios of sizes refer to."""
    return len(json.dumps(state, separators=(",", ":"), ensure_ascii=False).encode())


@dataclass(frozen=True, slots=True)
class Scene:
    """A state of workload W near a wanted size. `is_first` begins a new conversation: its save is not timed."""

    state: State
    is_first: bool
    conversation: int
    step: int


def near(size_bytes: int, samples: int) -> Iterator[Scene]:
    """States of W within a fifth of a size, `samples` of them after those that begin a conversation."""
    taken = 0
    for number in count():
        is_first = True
        for step, state in enumerate(conversation(SEED + number), 1):
            # A message is enough to judge by: measuring a state of megabytes at each step would take minutes.
            if step * 2000 < 0.8 * size_bytes:
                continue
            if step * 2000 > 1.2 * size_bytes and not is_first:
                break
            yield Scene(state, is_first, number, step)
            taken += not is_first
            is_first = False
            if taken == samples:
                return
