"""The pages beside what works: runs and their workers, agents and frameworks, pruned history, a store that fills up."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

import stepkeep
from stepkeep.model import utc_now_us
from stepkeep.web.answers import ANSWERS, Opened, Params
from stepkeep.web.server import Pages as Application
from tests import interpreter
from tests.web.driving import Pages

Visit = Callable[..., Pages]

DAY_US = 24 * 3600 * 1_000_000


# --- what is stored, and what goes


def test_the_storage_bar_says_what_goes_next_and_why(
    visit: Visit, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page names the budget, and a session that is due with the reason; what is over budget is said."""
    with stepkeep.open(url) as store:
        store.session("young", metadata={"task": "Rank the pages"}).save({"n": 1})
        store.session("broken").save({"n": 1}, message="said before")
        store.get("broken").fail("the model answered 529")
    with stepkeep.open(url, clock=lambda: utc_now_us() - 40 * DAY_US) as store:
        store.session("old <b>").save({"n": 1})
        store.get("old <b>").complete()
    pages = visit(url)
    bar = pages.page.locator(".meter")
    expect(bar).to_contain_text("of 10GiB")
    expect(bar.get_by_role("meter")).to_be_visible()
    expect(bar).to_contain_text("Next to go: 1 session, such as old <b>")
    expect(bar).to_contain_text("30")
    rows = pages.page.locator(".sessions li")
    expect(rows.filter(has_text="young")).to_contain_text("Rank the pages")
    expect(rows.filter(has_text="broken")).to_contain_text("the model answered 529")
    bar.get_by_role("link").click()
    expect(pages.ready().locator("main")).to_contain_text("The next clean removes 1 session")
    (tmp_path / "stepkeep").mkdir()
    (tmp_path / "stepkeep" / "config.yaml").write_text("limits: {budget_bytes: 1KB}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    small = visit(url)
    expect(small.page.locator(".meter")).to_contain_text("over its budget")
    assert pages.complaints == small.complaints == []


def test_pruned_and_folded_history_is_told_apart(visit: Visit, url: str) -> None:
    """Runs of plain checkpoints are folded and open where they are; what was pruned is a dashed gap that says so."""
    with stepkeep.open(url) as store:
        run = store.session("s", profile="archive")
        for n in range(60):
            run.save(
                {"n": n}, step=n, message="the tenth" if n == 9 else "", tags=["kept"] if n in (9, 30) else []
            )
        run.prune(keep_last=40, keep_tags=["kept"])
    pages = visit(url)
    page = pages.go("s", "s")
    expect(page.locator(".row.is-gap .row-fold").first).to_contain_text("pruned")
    expect(page.locator(".row.is-gap .is-dashed").first).to_be_visible()
    expect(page.locator(".toolbar")).to_contain_text("19 pruned")
    folds = page.locator("a.row-fold")
    expect(folds.first).to_contain_text("automatic")
    folds.last.click()
    expect(page).to_have_url(pages.ui.base + f"/?{pages.loads}#/s/s?all=1&at=30")
    expect(page.locator(".row-main")).not_to_have_count(0)
    expect(page.locator("a.row-fold")).to_have_count(0)
    assert pages.complaints == []


def test_the_store_page_plans_and_looks_over(visit: Visit, url: str, shell: Callable[[str], str]) -> None:
    """Growth and figures, what a prune would remove and by which rule, health, and the last backup."""
    with stepkeep.open(url) as store:
        run = store.session("s", profile="archive")
        for n in range(12):
            run.save({"n": n})
    rule = ("keep", "s", "--policy", "keep_last=5", "--store", url)
    assert interpreter.stepkeep(*rule).returncode == 0
    pages = visit(url)
    page = pages.go("store")
    expect(page.locator(".growth")).to_contain_text("saves")
    expect(page.locator(".bars li")).to_have_count(7)
    expect(page.locator("main")).to_contain_text("None is known of")
    page.get_by_role("button", name="Plan a prune").click()
    expect(page.locator("main")).to_contain_text("The next prune removes 7 checkpoints")
    page.get_by_role("button", name="Look it over").click()
    expect(page.locator(".symptoms li").first).to_be_visible()
    assert pages.serious_findings() == []
    page.locator(".rules").get_by_role("link", name="s", exact=True).click()
    table = pages.ready().get_by_role("region", name="Decisions")
    expect(table.locator("tr.is-going")).to_have_count(1)
    expect(table.locator("tr.is-going")).to_contain_text("1–7")
    expect(table.locator("tr.is-going .reasons")).not_to_be_empty()
    if url.startswith("sqlite:"):
        shell(pages.go("store").locator("code[aria-label=Command]").last.inner_text())
        expect(pages.go("store").locator("main")).to_contain_text("The last one is of")
    assert pages.complaints == []


# --- runs

FLOW = """\
name: tides
steps:
  - {id: fetch, name: Fetch the levels, shell: 'test -e tried || { touch tried; echo no >&2; exit 3; }; echo 12.1',
     retry: {attempts: 3, delay: 0s}}
  - {id: wait, shell: 'cat gate'}
  - {id: post, shell: 'echo posted; echo warned >&2'}
"""


def test_a_worker_is_followed_through_its_queue(visit: Visit, url: str, tmp_path: Path) -> None:
    """A queued run waits, is run by a worker that is named, and ends, all without a reload; its steps have status,
    attempts, duration and output."""
    flow = tmp_path / "flow.yaml"
    flow.write_text(FLOW)
    os.mkfifo(tmp_path / "gate")
    words = ("run", str(flow), "--detach", "--queue", "gpu", "--session", "tides-1", "--store", url)
    assert interpreter.stepkeep(*words).returncode == 0
    pages = visit(url)
    page = pages.go("runs")
    queue = page.get_by_role("region", name="Queues").locator("tbody tr")
    expect(queue).to_contain_text("stepkeep worker --queue gpu")
    expect(queue.locator("td")).to_contain_text(["gpu", "1", "0"])
    worker = interpreter.start(
        ["-m", "stepkeep", "worker", "--queue", "gpu", "--once", "--store", url],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        expect(queue.locator("td")).to_contain_text(["gpu", "0", "1", "tides-1"])
        expect(queue).to_contain_text(f"pid {worker.pid}")
        page = pages.go("s", "tides-1", "run")
        steps = page.locator(".step")
        expect(steps.nth(0)).to_contain_text("completed")
        expect(steps.nth(0)).to_contain_text("2 attempts")
        expect(page.locator(".head-line .badge")).to_have_text("running")
        (tmp_path / "gate").write_text("open\n")
        expect(page.locator(".head-line .badge")).to_have_text("completed")
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
    expect(steps.nth(2)).to_contain_text("ms")
    page.get_by_role("button", name="post").click()
    expect(page.locator("pre[aria-label=stdout]")).to_have_text("posted\n")
    expect(page.locator("pre[aria-label=stderr]")).to_have_text("warned\n")
    assert pages.complaints == []


# --- a store that never rests


def test_a_store_that_never_rests_is_followed(visit: Visit, file: Path) -> None:
    """What changes while an answer is under way neither stops it nor is missed: it is asked for once more."""
    with stepkeep.open(file) as store:
        run = store.session("s")
        run.save({"n": 0}, message="message 0")
        pages = visit(f"sqlite:{file}")
        page, failed, held, is_held = pages.page, [], [], True
        expect(page.locator(".session-message")).to_have_text("message 0")
        page.on("requestfailed", lambda request: failed.append(request.url))
        page.route("**/api/sessions*", lambda route: held.append(route) if is_held else route.continue_())
        for n in range(1, 4):
            page.evaluate(LISTEN)
            run.save({"n": n}, message=f"message {n}")
            assert page.evaluate("() => window.news") == ["s"]
        assert len(held) == 1
        is_held = False
        held[0].continue_()
        expect(page.locator(".session-message")).to_have_text("message 3")
        assert [url for url in failed if "sessions" in url] == []


LISTEN = """() => new Promise((listening) => {
  const source = new EventSource('./api/changes');
  window.news = new Promise((resolve) => {
    source.onmessage = ({data}) => {
      const {sessions} = JSON.parse(data);
      listening();
      if (sessions.length) { source.close(); resolve(sessions); }
    };
  });
})"""
"""Listens as the page does; `window.news` are the sessions that changed next."""


def test_rows_in_view_stay_while_others_save(visit: Visit, file: Path) -> None:
    """Far down in a long timeline, what is saved meanwhile neither moves nor empties the rows in view."""
    with stepkeep.open(file) as store:
        run = store.session("s", profile="archive")
        for n in range(1, 1001):
            run.save({"n": n}, wait=False)
        store.flush()
        pages = visit(f"sqlite:{file}")
        page = pages.go("s", "s", query="all=1")
        page.locator(".row-main").first.focus()
        page.keyboard.press("End")
        expect(page.locator(":focus .row-seq")).to_have_text("1")
        before = page.locator(".row-seq").all_inner_texts()
        page.route("**/api/timeline*page=*", lambda route: route.abort())
        run.save({"n": 0}, message="the newest")
        expect(page.locator(".row").first).to_have_attribute("aria-setsize", "1001")
        assert page.locator(".row-seq").all_inner_texts()[-10:] == before[-10:]
        expect(page.locator(":focus .row-seq")).to_have_text("1")
        page.keyboard.press("ArrowUp")
        expect(page.locator(":focus .row-seq")).to_have_text("2")


# --- agents and frameworks


def test_a_langgraph_thread_is_a_conversation(visit: Visit, file: Path) -> None:
    """Messages that name their class are read as messages; a thread without steps is no run."""
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    from stepkeep.adapters.langgraph import StepkeepSaver

    builder = StateGraph(MessagesState)
    builder.add_node("plan", lambda _: {"messages": [AIMessage("I will delete the old branch.")]})
    builder.add_edge(START, "plan")
    builder.add_edge("plan", END)
    with StepkeepSaver(f"sqlite:{file}") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [("user", "Clean up.")]}, {"configurable": {"thread_id": "release-7"}})
    pages = visit(f"sqlite:{file}")
    pages.page.get_by_role("link", name="release-7").click()
    pages.ready().locator(".row-main").first.click()
    page = pages.ready()
    page.get_by_role("link", name="Conversation (2)").click()
    expect(page.locator(".message.is-user .said")).to_have_text("Clean up.")
    expect(page.locator(".message.is-assistant .said")).to_have_text("I will delete the old branch.")
    expect(pages.go("runs").locator("main")).to_contain_text("No runs")
    assert pages.complaints == []


def test_events_of_a_coding_agent_are_told_apart(visit: Visit, file: Path, tmp_path: Path) -> None:
    """Checkpoints of one task say at which event they were saved, and the session what it is about."""
    base = {"session_id": "3f2a", "cwd": str(tmp_path), "transcript_path": str(tmp_path / "t.jsonl")}
    for name, more in (
        ("UserPromptSubmit", {"prompt": "Mend the form"}),
        ("Stop", {"stop_hook_active": False}),
    ):
        event = json.dumps({**base, "hook_event_name": name, **more})
        words = ("hook", name, "--client", "claude-code", "--store", f"sqlite:{file}")
        assert interpreter.stepkeep(*words, input=event, cwd=tmp_path).returncode == 0
    pages = visit(f"sqlite:{file}")
    expect(pages.page.locator(".sessions li")).to_contain_text("Mend the form")
    page = pages.go("s", "claude-code:3f2a")
    expect(page.locator(".row-event")).to_have_text(["turn end", "prompt"])


def test_how_a_value_came_to_be_is_one_click_away(visit: Visit, url: str) -> None:
    """Each value of a state leads to its history, with the words that changed marked."""
    with stepkeep.open(url) as store:
        run = store.session("s")
        run.save({"deep": [{"note": "the slow fox"}]})
        header = run.save({"deep": [{"note": "the quick fox"}]})
    pages = visit(url)
    page = pages.go("s", "s", "c", header.id)
    page.get_by_role("button", name="deep").click()
    page.get_by_role("button", name="[0]").click()
    page.get_by_role("link", name="History of deep[0].note").click()
    expect(page.locator("h1")).to_have_text("History of deep[0].note")
    expect(page.locator(".changes li")).to_have_count(2)
    expect(page.locator("del")).to_have_text("slow")
    expect(page.locator("ins")).to_have_text("quick")


# --- those who copy, listen, or go away


def test_a_command_is_copied_as_it_is_shown(visit: Visit, file: Path) -> None:
    """The button puts the command into the clipboard, and says so."""
    with stepkeep.open(file) as store:
        header = store.session("it's \x1b[31m").save({"n": 1})
    pages = visit(f"sqlite:{file}")
    pages.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = pages.go("s", "it's \x1b[31m", "c", header.id)
    page.get_by_role("button", name="Fork").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == page.get_by_role("dialog").locator("code").inner_text()
    assert copied.startswith(r"stepkeep branch fork $'it\'s \x1b[31m' ")


def test_a_screen_reader_hears_what_is_where(visit: Visit, file: Path) -> None:
    """Landmarks, one heading of the first level, names of all that can be pressed, and news in live regions."""
    with stepkeep.open(file) as store:
        store.session("s").save({"n": 1}, message="first", tags=["plan"])
    pages = visit(f"sqlite:{file}")
    page = pages.go("s", "s")
    heard = page.locator("body").aria_snapshot()
    for line in (
        "- banner:",
        '- navigation "Main":',
        "- main:",
        '- heading "s" [level=1]',
        '- navigation "Of this session":',
        '- list "Checkpoints, newest first":',
        '- checkbox "Pick checkpoint 1 to compare"',
        '- link "1 first":',
        "- status: live",
    ):
        assert line in heard
    expect(page.locator("main h1")).to_have_count(1)
    page.get_by_role("link", name="Runs").click()
    expect(page.locator("h1")).to_be_focused()  # a new page is read from its heading


def test_a_search_that_nobody_waits_for_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the browser goes away the search is told, and looks no further."""
    stopped: list[bool] = []

    def find(_: Opened, params: Params) -> object:
        end = time.monotonic() + 60
        while not params.is_gone() and time.monotonic() < end:
            time.sleep(0.01)  # as long as there is something to look at
        stopped.append(params.is_gone())
        return {}

    monkeypatch.setitem(ANSWERS, "find", find)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/find",
        "query_string": b"key=s&text=x",
        "headers": [],
    }
    told = iter([{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, object]:
        return next(told)

    async def send(_: dict[str, object]) -> None:
        pass

    with stepkeep.open(tmp_path / "store.db") as store:
        app = Application(Opened(store), allows_changes=False).app
        loop = asyncio.new_event_loop()
        loop.run_until_complete(app(scope, receive, send))
        loop.close()
    assert stopped == [True]
