"""Run turns of a conversation: print what the framework remembers after each, and with `--hold` stay until killed."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys

import stepkeep


async def _run(options: argparse.Namespace) -> None:
    module = importlib.import_module(f"tests.interop.offline.{options.name}")
    with stepkeep.open(options.url) as store:
        agent = module.Agent(store)
        for prompt in options.prompts:
            print(json.dumps(await agent.turn(options.conversation, prompt)), flush=True)
        if options.hold:
            sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("name")
    parser.add_argument("url")
    parser.add_argument("conversation")
    parser.add_argument("prompts", nargs="+")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
