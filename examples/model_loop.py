"""A plain loop of model and tools that saves its conversation after every turn:

    python examples/model_loop.py --crash    # kills itself in the middle of the conversation
    python examples/model_loop.py            # goes on with the next turn
    python examples/model_loop.py            # finds it finished

The model is a stand-in that follows a script, so nothing goes over the network; put yours into `ask`. The store is
`loop.db`, or the file that is named.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import stepkeep

Message = dict[str, Any]
TIDES = {"Brest": 7.3, "Saint-Malo": 12.1}
CRASH_AFTER = 4
"""How many messages there are when `--crash` ends the program."""


def ask(messages: list[Message]) -> Message:
    """The model: what it says next, which may be to call a tool."""
    answers = [message["content"] for message in messages if message["role"] == "tool"]
    places = list(TIDES)
    if len(answers) < len(places):
        call = {"tool": "tide", "place": places[len(answers)]}
        return {"role": "assistant", "content": "", "call": call}
    best = max(zip(answers, places, strict=True))
    return {"role": "assistant", "content": f"The highest water is at {best[1]}: {best[0]} m."}


def tide(place: str) -> float:
    """A tool. It says when it works, so that you see what is not done twice."""
    print(f"tool: tide at {place}", flush=True)
    return TIDES[place]


def turn(messages: list[Message]) -> Message:
    """The next message: the tool's if one was called, else the model's."""
    call = messages[-1].get("call")
    if call is None:
        return ask(messages)
    return {"role": "tool", "content": tide(call["place"])}


def is_over(messages: list[Message]) -> bool:
    return messages[-1]["role"] == "assistant" and "call" not in messages[-1]


def main(path: str, *, crash: bool) -> None:
    with stepkeep.open(path) as store:
        session = store.session("tides", profile="agent")
        found = session.latest()
        messages = [{"role": "user", "content": "Where is the highest water?"}]
        if found is not None:
            messages = found.state["messages"]
            print(f"going on after {len(messages)} messages")
        while not is_over(messages):
            messages.append(turn(messages))
            # When this returns, the turn survives a kill and a loss of power.
            session.save({"messages": messages}, step=len(messages), message=messages[-1]["role"])
            if crash and len(messages) == CRASH_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
        if session.info.status is not stepkeep.Status.COMPLETED:
            session.complete()
    print(messages[-1]["content"])


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    main(paths[0] if paths else "loop.db", crash="--crash" in sys.argv)
