"""One small agent per framework that runs offline, in the framework's public way, on our adapter.

Each module has a class `Agent`, made with an open store and rules of retention. Its `turn` runs one turn of a
conversation and returns the prompts of the whole conversation, as the framework remembers them. `write` only saves a
prompt, as the framework would. `key` is the session of a conversation. `python -m tests.interop.offline NAME URL
CONVERSATION PROMPT…` runs turns in a process of its own.
"""
