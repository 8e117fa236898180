"""How a coding agent is told to go on with a conversation as it was before a prompt.

Each client keeps its own conversations; what it offers for this is what it is given here. The flags of Claude Code are
those that its SDK writes: they cut a conversation in print mode only, so that the prompt belongs to the command.
"""

from __future__ import annotations

import shlex

import msgspec

from stepkeep.recording.coding_agents.hook_events import (
    CLAUDE_CODE,
    CODEX,
    COPILOT,
    CURSOR,
    GEMINI,
    MAX_PROMPT,
    OPENCODE,
)
from stepkeep.recording.coding_agents.turns import Turn


class ConversationFork(msgspec.Struct, frozen=True, kw_only=True):
    """The commands that go on with a conversation before a turn, one after another, and what is left to do by hand.

    `is_exact` says that the commands alone lead there.
    """

    commands: tuple[str, ...]
    note: str = ""
    is_exact: bool = True


def fork_before(client: str, session: str, turn: Turn, *, is_newest: bool) -> ConversationFork:
    """How a conversation of a client is forked before a turn. `is_newest`: only this turn is dropped."""
    if client == CLAUDE_CODE:
        return _claude(session, turn, is_newest=is_newest)
    words, then = _BY_HAND.get(client, ((), "open the conversation there: this client has no command for it"))
    commands = (shlex.join([*words, session]),) if words else ()
    return ConversationFork(commands=commands, note=then, is_exact=False)


def claude_words(session: str, turn: Turn, *, is_newest: bool) -> list[str]:
    """The words of the command that forks a conversation of Claude Code before a turn that is not its first.

    The turn that is dropped is named only where it is the only one: Claude Code refuses otherwise.
    """
    words = [f"--resume={session}", "--fork-session", f"--resume-session-at={turn.entry}"]
    if is_newest and turn.prompt_entry is not None:
        words.append(f"--resume-drops-turn={turn.prompt_entry}")
    return words


def _claude(session: str, turn: Turn, *, is_newest: bool) -> ConversationFork:
    if turn.entry is None:
        return ConversationFork(commands=("claude",), note="nothing came before this prompt: begin anew")
    is_cut = (
        len(turn.prompt) == MAX_PROMPT
    )  # as what is saved of it is; where the transcript is kept it is whole
    prompt = "YOUR PROMPT" if is_cut or not turn.prompt else turn.prompt
    words = ["claude", "-p", prompt, *claude_words(session, turn, is_newest=is_newest)]
    return ConversationFork(
        commands=(shlex.join(words), "claude --continue"),
        note="the first sends the prompt again, change it as you like; the second goes on from there",
    )


_BY_HAND = {
    CODEX: (("codex", "fork"), "then press Esc twice, and choose the prompt"),
    GEMINI: (("gemini", "--resume"), "then type /rewind, and choose the prompt"),
    COPILOT: (("copilot", "--resume"), "it goes on from its end: say what was taken back"),
    CURSOR: (
        ("cursor-agent", "--resume"),
        "in the editor, choose `Restore Checkpoint` at the prompt instead",
    ),
    OPENCODE: (("opencode", "--session"), "then type /undo until the prompt is there"),
}
"""What opens a conversation, and what a person does there."""
