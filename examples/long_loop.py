"""A long loop of costly calls: `python examples/long_loop.py`. Kill it whenever you like, and start it again.

It goes on behind the last call that returned. Its store is `agent.db`.
"""

import time

import stepkeep


def ask_model(step: int) -> str:
    time.sleep(0.05)  # yours takes longer, and costs something
    print(f"step {step}", flush=True)
    return f"answer {step}"


if __name__ == "__main__":
    with stepkeep.open("sqlite:agent.db") as store, store.run("research") as run:
        answers = [run.step(f"ask {step}", ask_model, step) for step in range(1, 61)]
    print(f"done: {len(answers)} answers")
