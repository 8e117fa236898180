"""The pages in a real browser: what they show, live, by keyboard, on narrow and dark screens, whatever is stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Keyboard, Page, expect

import stepkeep
from stepkeep import PlanStep
from tests import interpreter
from tests.contract.test_sqlite import SqliteAccess
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server
from tests.web import stores
from tests.web.driving import Pages

Visit = Callable[..., Pages]


def pages_of(ids: dict[str, str]) -> dict[str, tuple[tuple[str, ...], str, str]]:
    """Every page: its address, and a text that it shows."""
    return {
        "sessions": ((), "", "research"),
        "search": ((), "text=plan+made", "research"),
        "timeline": (("s", "research"), "", "plan made"),
        "all": (("s", "research"), "all=1", "searched"),
        "state": (("s", "research", "c", ids["last"]), "", "verified"),
        "details": (("s", "research", "c", ids["second"]), "tab=details", "because"),
        "conversation": (("s", "research", "c", ids["last"]), "tab=conversation", "Which database?"),
        "header": (("s", "research", "c", ids["last"]), "tab=header", ids["last"]),
        "files": (("s", "files", "c", ids["after"]), "tab=files", "app.py"),
        "compare": (("s", "research", "compare", ids["first"], ids["last"]), "", "done"),
        "compare files": (("s", "files", "compare", ids["before"], ids["after"]), "", "new.txt"),
        "find": (("s", "research", "find"), "text=BROWN", "the slow"),
        "log": (("s", "research", "log"), f"path=note&ref={ids['last']}", "brown fox"),
        "runs": (("runs",), "", "deploy"),
        "run": (("s", "deploy", "run"), "", "the token has expired"),
        "waiting": (("s", "mail", "run"), "", "Send it to 3 people?"),
        "checkpoint's events": (("s", "research", "c", ids["first"]), "tab=events", "branch switched"),
        "events": (("s", "research", "events"), "", "branch switched"),
        "retention": (("s", "research", "retention"), "", "stays"),
        "store": (("store",), "", "Largest sessions"),
        "nowhere": (("x",), "", "There is no such page"),
    }


def test_every_page_shows_what_is_stored(visit: Visit, url: str, tmp_path: Path) -> None:
    """Each page has an address of its own, shows what the store has, and axe-core finds nothing serious on it."""
    pages = visit(url) if (ids := stores.fill(url, tmp_path)) else pytest.fail("nothing was saved")
    for name, (segments, query, text) in pages_of(ids).items():
        page = pages.go(*segments, query=query)
        expect(page.locator("main")).to_contain_text(text)
        assert (name, _findings(pages, url)) == (name, [])
        assert (name, pages.is_too_wide) == (name, False)
    assert pages.complaints == []


def _findings(pages: Pages, url: str) -> list[str]:
    """What axe-core finds. The markup is the same for every store, so looking at it once is enough."""
    return pages.serious_findings() if url.startswith("sqlite:") else []


def test_narrow_and_dark(visit: Visit, url: str, tmp_path: Path) -> None:
    """On a telephone in the dark every page fits the screen, and its texts are readable."""
    ids = stores.fill(url, tmp_path)
    pages = visit(url, width=390, scheme="dark")
    for name, (segments, query, text) in pages_of(ids).items():
        page = pages.go(*segments, query=query)
        expect(page.locator("main")).to_contain_text(text)
        assert (name, pages.is_too_wide) == (name, False)
        assert (name, _findings(pages, url)) == (name, [])
    assert pages.complaints == []


def test_links_and_the_back_button_lead_through(visit: Visit, url: str, tmp_path: Path) -> None:
    """From the sessions over the timeline to a value of a state, two picked ones compared, and all the way back."""
    stores.fill(url, tmp_path)
    pages = visit(url)
    page = pages.page
    page.get_by_role("link", name="research").click()
    page.get_by_role("link", name=re.compile("plan made")).hover()
    expect(page.get_by_role("tooltip")).to_contain_text("step")
    page.get_by_label("Pick checkpoint 1 to compare").check()
    page.get_by_label("Pick checkpoint 4 to compare").check()
    page.get_by_role("link", name="Compare 1 and 4").click()
    expect(page.locator("h1")).to_have_text("1 → 4")
    expect(page.locator("del")).to_have_text("slow")
    expect(page.locator("ins")).to_have_text("quick")
    page.go_back()
    page.get_by_role("link", name=re.compile("report")).click()
    page.get_by_role("button", name=re.compile("scores")).click()
    expect(page.locator(".tree")).to_have_count(2)
    expect(page.locator(".tree .tree")).to_contain_text("2.5")
    page.go_back()
    page.go_back()
    expect(page.locator("h1")).to_have_text("Sessions")
    expect(page).to_have_title("Sessions · Stepkeep")
    assert pages.complaints == []


def test_a_tag_leads_to_what_has_it(visit: Visit, file: Path, tmp_path: Path) -> None:
    """The tag of a checkpoint opens the timeline of those with it, and says how many it leaves out."""
    ids = stores.fill(f"sqlite:{file}", tmp_path)
    pages = visit(f"sqlite:{file}")
    page = pages.go("s", "research", "c", ids["first"])
    page.get_by_role("link", name="plan", exact=True).click()
    expect(page.locator(".row-main")).to_contain_text(["plan made"])
    expect(page.locator(".toolbar")).to_contain_text("3 left out")
    page.get_by_role("link", name="tag plan").click()
    expect(page.locator(".row-main")).to_have_count(4)


def test_sessions_are_found_and_chosen(visit: Visit, file: Path, tmp_path: Path) -> None:
    """Searching and choosing a status leave those that match, and the address says what was asked."""
    stores.fill(f"sqlite:{file}", tmp_path)
    pages = visit(f"sqlite:{file}")
    page = pages.page
    keys = page.locator(".session-key")
    expect(keys).to_have_count(5)
    page.get_by_role("link", name="Completed").click()
    expect(keys).to_have_text(["done"])
    page.get_by_role("link", name="Crashed").click()
    expect(page.locator("main")).to_contain_text("Nothing matches")
    page.get_by_role("link", name="Show all").click()
    expect(keys).to_have_count(5)
    page.get_by_role("searchbox").fill("compare")
    page.keyboard.press("Enter")
    expect(keys).to_have_text(["research"])
    assert page.url.endswith("#/?text=compare")


def test_a_state_with_huge_keys_and_values_is_shown(visit: Visit, file: Path) -> None:
    """A key of a megabyte and a list of 100,000 items are shown in part, and the rest is loaded when asked for."""
    with stepkeep.open(file) as store:
        header = store.session("s").save(
            {"k" * 1_000_000: 1, "many": list(range(100_000)), "deep": [[[["x"]]]]}
        )
    pages = visit(f"sqlite:{file}")
    page = pages.go("s", "s", "c", header.id)
    page.get_by_role("button", name=re.compile("many")).click()
    expect(page.locator(".tree .tree > li")).to_have_count(101)
    page.get_by_role("button", name="100 more of 99,900").click()
    expect(page.locator(".tree .tree > li")).to_have_count(201)
    assert not pages.is_too_wide
    assert pages.complaints == []


def test_files_of_two_checkpoints_are_compared(visit: Visit, url: str, tmp_path: Path) -> None:
    """A changed file opens as a unified difference, and a captured one with its content."""
    ids = stores.fill(url, tmp_path)
    pages = visit(url)
    page = pages.go("s", "files", "compare", ids["before"], ids["after"])
    page.get_by_role("button", name="app.py").click()
    expect(page.locator(".patch .is-removed").last).to_have_text("-print('one')\n")
    page = pages.go("s", "files", "c", ids["before"], query="tab=files")
    page.get_by_role("button", name="app.py").click()
    expect(page.locator("pre.code")).to_have_text("print('one')\n")


def test_what_another_process_saves_appears_at_once(visit: Visit, url: str) -> None:
    """Open pages follow the store: a new session, its next checkpoints, and its end, without a reload."""
    with stepkeep.open(url) as store:
        store.session("first").save({"n": 0}, message="zero")
    pages = visit(url)
    page = pages.page
    save = "import stepkeep, sys\nwith stepkeep.open(sys.argv[1]) as store: store.session('second')."
    interpreter.python("-c", save + "save({'n': 1}, message='one')", url)
    expect(page.get_by_role("link", name="second")).to_be_visible()
    page.get_by_role("link", name="second").click()
    expect(page.locator(".row-main")).to_have_count(1)
    interpreter.python("-c", save + "save({'n': 2}, message='two')", url)
    expect(page.locator(".row-main").first).to_contain_text("two")
    interpreter.python("-c", save + "complete()", url)
    expect(page.locator(".head-line .badge")).to_have_text("completed")
    assert pages.complaints == []


def test_a_question_that_is_given_up_is_no_error(visit: Visit, file: Path, tmp_path: Path) -> None:
    """A page that asks again before its answer is there shows no problem, however often that happens."""
    stores.fill(f"sqlite:{file}", tmp_path)
    pages = visit(f"sqlite:{file}")
    pages.page.add_init_script(
        "window.problems = [];"
        "new MutationObserver(() => document.querySelectorAll('.problem[role=alert]')"
        ".forEach((each) => window.problems.push(each.textContent)))"
        ".observe(document, { childList: true, subtree: true })"
    )
    for segments in [(), ("runs",), ("store",), ("s", "research")] * 6:
        page = pages.go(*segments)
        expect(page.locator(".state")).to_have_text("live")
        assert page.evaluate("() => window.problems") == []


def test_everything_is_reached_by_keyboard(visit: Visit, url: str, tmp_path: Path) -> None:
    """Tab, arrows, Enter and x are enough to find a session, compare two checkpoints and open a value."""
    stores.fill(url, tmp_path)
    pages = visit(url)
    page = pages.page
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the page")
    tab_to(page, "research").press("Enter")
    expect(page.locator(".row-main")).to_have_count(4)
    expect(page.locator("h1")).to_be_focused()
    tab_to(page, "report")
    page.keyboard.press("x")
    page.keyboard.press("ArrowDown")
    expect(page.locator(":focus")).to_contain_text("on the other branch")
    expect(page.get_by_role("tooltip")).to_contain_text("Checkpoint 3")
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_have_count(0)
    page.keyboard.press("End")
    expect(page.locator(":focus")).to_contain_text("plan made")
    page.keyboard.press("x")
    expect(page.get_by_role("link", name="Compare 1 and 4")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Checkpoint 1")
    tab_to(page, "scores").press("Enter")
    expect(page.locator(".tree .tree")).to_contain_text("2.5")
    assert pages.complaints == []


def test_dialogs_and_menus_are_used_by_keyboard(visit: Visit, file: Path) -> None:
    """A dialog begins at its first field and gives the focus back; Escape and a click elsewhere close the menu."""
    with stepkeep.open(file) as store:
        store.session("s").save({"n": 1})
    pages = visit(f"sqlite:{file}", "--allow-changes")
    page = pages.go("s", "s")
    menu = page.locator("details.menu")
    tab_to(page, "Actions").press("Enter")
    tab_to(page, "Checkpoint now").press("Enter")
    expect(page.get_by_label("Note")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Checkpoint now")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")
    expect(page.locator("summary")).to_be_focused()
    page.keyboard.press("Enter")
    expect(menu).to_have_attribute("open", "")
    page.locator("h1").click()
    expect(menu).not_to_have_attribute("open", "")
    assert pages.complaints == []


def tab_to(page: Page, text: str) -> Keyboard:
    """Press Tab until what has the focus shows a text."""
    expect(page.locator("main")).to_contain_text(text)
    for _ in range(60):
        page.keyboard.press("Tab")
        if text in (page.evaluate("() => document.activeElement.textContent") or ""):
            return page.keyboard
    raise AssertionError(f"Tab never reaches {text!r}")


def test_an_empty_store_says_what_to_do(visit: Visit, url: str) -> None:
    """Pages of a store without sessions are not empty: they say what will appear, and nothing breaks."""
    stepkeep.open(url).close()
    pages = visit(url)
    expect(pages.page.locator("main")).to_contain_text("No sessions yet")
    expect(pages.page.locator(".meter")).to_contain_text("of 10GiB")  # the budget that every store has
    for segments, text in (("runs",), "No runs"), (("store",), "0 sessions"):
        expect(pages.go(*segments).locator("main")).to_contain_text(text)
        assert pages.serious_findings() == []
    assert pages.complaints == []


def test_a_damaged_checkpoint_is_told_and_harms_no_other(
    visit: Visit, url: str, request: pytest.FixtureRequest
) -> None:
    """The page of a damaged state says so, with a code and what to do; its header and all others are shown."""
    with stepkeep.open(url) as store:
        run = store.session("s", profile="archive")
        good = run.save({"n": "x" * 5000})
        bad = run.save({"other": list(range(3000))})
        worse = run.save({"third": "y" * 3000})
    access = (
        SqliteAccess(Path(url.removeprefix("sqlite:")))
        if url.startswith("sqlite:")
        else PostgresAccess(request.getfixturevalue("postgres"), url)
    )
    access.damage_body(bad.id, "state")
    access.damage_header(worse.id)
    pages = visit(url)
    page = pages.go("s", "s", "c", bad.id)
    expect(page.get_by_role("alert").first).to_contain_text("checkpoint_integrity_mismatch")
    expect(page.get_by_role("alert").locator("code[aria-label=Command]").first).to_contain_text(
        "stepkeep verify s --store "
    )
    expect(page.locator("main")).to_contain_text("saved (UTC)")
    page.set_viewport_size({"width": 390, "height": 900})
    assert not pages.is_too_wide
    expect(pages.go("s", "s", "c", good.id).locator(".verified")).to_contain_text("verified")
    page = pages.go("s", "s", "retention")
    page.get_by_role("button", name="Verify every byte").click()
    expect(page.locator("main")).to_contain_text("findings")
    page = pages.go("s", "s", query="all=1")
    expect(page.locator(".row.is-damaged")).to_contain_text("checkpoint 3 has a damaged header")
    expect(page.locator(".row-main")).to_have_count(2)


def test_a_server_that_is_gone_is_told(visit: Visit, file: Path) -> None:
    """When the server ends, open pages say that the store cannot be reached."""
    with stepkeep.open(file) as store:
        store.session("s").save({"n": 1})
    pages = visit(f"sqlite:{file}")
    expect(pages.page.locator(".state")).to_have_text("live")
    pages.ui.process.kill()
    expect(pages.page.locator(".state")).to_have_text("store unreachable")


def test_a_store_that_goes_away_and_comes_back(visit: Visit) -> None:
    """While the database is away the pages say so and keep what they show; when it is back they go on."""
    server = Server()
    try:
        url = server.fresh_url()
        with stepkeep.open(url) as store:
            store.session("s").save({"n": 1}, message="before")
        pages = visit(url)
        expect(pages.page.get_by_role("link", name="s", exact=True)).to_be_visible()
        server.kill()
        expect(pages.page.locator(".state")).to_have_text("store unreachable")
        expect(pages.page.get_by_role("link", name="s", exact=True)).to_be_visible()
        server.start()
        expect(pages.page.locator(".state")).to_have_text("live")
    finally:
        server.stop()


def test_ten_thousand_checkpoints_are_scrolled_through(visit: Visit, url: str) -> None:
    """A timeline of 10,000 rows holds only those in view, and its last row is as near as its first."""
    with stepkeep.open(url) as store:
        run = store.session("long", profile="archive")
        for n in range(9999):
            run.save({"n": n}, wait=False)
        run.save({"n": 9999}, message="the last")
    pages = visit(url)
    page = pages.go("s", "long")
    expect(page.locator("main")).to_contain_text("automatic")
    assert page.locator(".row").count() < 30
    page = pages.go("s", "long", query="all=1")
    expect(page.locator(".row-main").first).to_contain_text("the last")
    assert page.locator(".row").count() < 80
    page.locator(".row-main").first.focus()
    page.keyboard.press("End")
    expect(page.locator(":focus .row-seq")).to_have_text("1")
    expect(page.locator(".row-seq").last).to_have_text("1")
    assert page.locator(".row").count() < 80
    assert pages.complaints == []


HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "\u202egnp.exe\u202c \u200bhidden\ufeff",
    "\x1b[31mred\x07 tab\tline\nbreak",
    "javascript:window.hacked=1",
    "</script><script>window.hacked=1</script>",
    "{{constructor.constructor('window.hacked=1')()}} ${1} %3Cb%3E",
)


@pytest.mark.parametrize(
    ("url", "text"),
    [*(("sqlite", text) for text in HOSTILE), ("postgres", " ".join(HOSTILE))],
    ids=[*map(str, range(len(HOSTILE))), "postgres"],
    indirect=["url"],
)
def test_stored_text_is_never_markup(visit: Visit, url: str, tmp_path: Path, text: str) -> None:
    """Whatever a store holds in keys, names, messages, states and files is shown as text, and runs nothing."""
    long = (text * 200)[: 1000 // len(text.encode())]
    tree = tmp_path / "tree"
    tree.mkdir()
    name = text.replace("/", "∕")[:60]
    with stepkeep.open(url) as store:
        run = store.session(text + long[:200], project=text, metadata={text: text, "task": text})
        options = {"message": text * 3, "tags": [text], "metadata": {text: text}, "details": {text: [text]}}
        (tree / name).write_text(text)
        first = run.save(
            {text: text, "messages": [{"role": text, "content": text, "name": text}]},
            workspace=tree,
            **options,
        )
        run.branches.fork(first.id, f"x{text}")
        (tree / name).write_text(text * 2)
        second = run.save(
            {text: text * 2, "big": text * 100_000},
            external_id=text,
            idempotency_key=text,
            workspace=tree,
            **options,
        )
        run.fail(text)
        key = run.key
        store.execute(
            f"asks {text}", [PlanStep(id=f"step {text}", description=text, ask=text)], lambda _: None
        )
    pages = visit(url)
    for segments, query in (
        ((), ""),
        (("s", key), "all=1"),
        (("s", key, "c", second.id), ""),
        (("s", key, "c", first.id), "tab=conversation"),
        (("s", key, "c", first.id), "tab=details"),
        (("s", key, "c", second.id), "tab=header"),
        (("s", key, "c", first.id), "tab=files"),
        (("s", key, "compare", first.id, second.id), ""),
        (("s", key, "find"), "text=a"),
        (("s", key, "events"), ""),
        (("s", key, "run"), ""),
        (("s", f"asks {text}", "run"), ""),
        (("s", key, "c", first.id), "tab=events"),
        (("s", key, "retention"), ""),
        (("s", key, "log"), f"ref={second.id}&path=big"),
        (("runs",), ""),
        (("store",), ""),
    ):
        page = pages.go(*segments, query=query)
        page.evaluate(
            "() => document.querySelectorAll('.files button, .tree button:enabled').forEach((each) => each.click())"
        )
        pages.ready()
        assert page.evaluate(
            "() => [window.hacked, document.querySelectorAll('main img, main script').length]"
        ) == [
            None,
            0,
        ]
        shown = page.locator("body").inner_text()
        assert not re.search("[\u202a-\u202e\u200b\ufeff\x1b\x07]", shown)
        assert not pages.is_too_wide
    assert pages.complaints == []


def test_a_state_is_downloaded_byte_for_byte(visit: Visit, file: Path) -> None:
    """The download of a state is exactly what was saved, as a file and not as a page."""
    with stepkeep.open(file) as store:
        header = store.session("s").save({"html": "<b>ä</b>", "n": [1, 2.5, None]})
        content = store.get("s").load().content()
    pages = visit(f"sqlite:{file}")
    page = pages.go("s", "s", "c", header.id)
    with page.expect_download() as found:
        page.get_by_role("link", name="Download").click()
    assert Path(found.value.path()).read_bytes() == content
    assert found.value.suggested_filename == f"{header.id}.json"


# --- changing something


def test_without_leave_pages_only_show_commands(visit: Visit, url: str, tmp_path: Path) -> None:
    """Each action shows the command that does it, and has no button that does."""
    ids = stores.fill(url, tmp_path)
    pages = visit(url)
    page = pages.go("s", "research", "c", ids["first"])
    page.get_by_role("button", name="Restore").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text(
        re.compile(re.escape(f"stepkeep restore research {ids['first']} --store "))
    )
    expect(dialog.locator("button[type=submit]")).to_have_count(0)
    assert pages.serious_findings() == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


HOSTILE_KEY = "it's \x1b[201~\n$(touch hacked) `x` \\ \u202ekey \x85"


@pytest.mark.parametrize("key", ["research", HOSTILE_KEY], ids=["plain", "hostile"])
def test_the_commands_that_pages_show_do_it(
    visit: Visit, url: str, shell: Callable[[str], str], key: str
) -> None:
    """Each command, copied into a shell in any folder, does to the store what the action would have done."""
    with stepkeep.open(url) as store:
        run = store.session(key, profile="archive")
        first = run.save({"n": 1})
        second = run.save({"n": 2})
        store.execute(f"asks {key}", [PlanStep(id=f"step {key}", ask="May I?")], lambda _: None)
    pages = visit(url)

    def command(name: str) -> str:
        page = pages.page
        page.get_by_role("button", name=name, exact=True).first.click()
        line = page.get_by_role("dialog").locator("code").inner_text()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert line.isprintable()
        return line

    pages.go("s", key, "c", first.id)
    restore, fork, delete = command("Restore"), command("Fork"), command("Delete")
    pages.go("s", key)
    pages.page.get_by_text("Actions", exact=True).click()
    undo, create = command("Undo the last restore"), command("Checkpoint now")
    complete, prune, clear = command("Mark as completed"), command("Prune"), command("Delete the session")
    approve = command("Approve") if pages.go("runs") else ""
    assert pages.complaints == []

    def info() -> stepkeep.SessionInfo:
        with stepkeep.open(url) as store:
            return store.get(key).info

    shell(restore)
    assert info().branch == "from-1"
    shell(undo)
    assert info().branch == "main"
    shell(create)
    assert info().last_seq == 3
    shell(fork)
    assert info().branch != "main"
    shell(undo.replace("--undo", "branch:main"))
    assert "deleted" in shell(prune)
    shell(complete)
    assert info().status is stepkeep.Status.COMPLETED
    shell(f"{delete} --yes")
    with stepkeep.open(url) as store:
        assert [header.id for header in store.get(key).history()][-1] == second.id
    shell(approve)
    shell(f"{clear} --yes")
    with stepkeep.open(url) as store:
        assert {each.key for each in store.sessions()} == {f"asks {key}"}
        saved = store.agents.load_latest(f"asks {key}")
        assert saved is not None
        assert saved.agent_state().questions[0].is_approved


def test_restore_and_undo_and_a_new_checkpoint(visit: Visit, url: str, tmp_path: Path) -> None:
    """With leave a session is restored, returned, and given a checkpoint with a note and tags."""
    ids = stores.fill(url, tmp_path)
    pages = visit(url, "--allow-changes")
    page = pages.go("s", "research", "c", ids["first"])
    page.get_by_role("button", name="Restore").click()
    page.get_by_label("Name of the branch").fill("again <b>")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator(".preview")).to_contain_text("removed done")
    with stepkeep.open(url) as store:
        assert store.get("research").info.branch == "main"
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.locator(".done")).to_contain_text("goes on from checkpoint 1 on again <b>")
    page = pages.go("s", "research")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Undo the last restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Undo the last restore").click()
    expect(page.locator(".done")).to_contain_text("main")
    page = pages.go("s", "research")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Checkpoint now").click()
    page.get_by_label("Note").fill("by hand")
    page.get_by_label("Tags").fill("one, two")
    page.get_by_role("dialog").get_by_role("button", name="Checkpoint now").click()
    expect(page.locator(".done")).to_contain_text("Saved as checkpoint 5")
    assert pages.complaints == []
    with stepkeep.open(url) as store:
        latest = store.get("research").latest()
        assert latest is not None
        assert (latest.header.message, latest.header.tags, latest.header.branch) == (
            "by hand",
            ("one", "two"),
            "main",
        )


@pytest.mark.parametrize("is_yes", [True, False], ids=["approve", "refuse"])
def test_what_a_step_asks_is_answered(visit: Visit, url: str, tmp_path: Path, is_yes: bool) -> None:
    """The runs page and that of the run show what waits for a person; the answer is saved, and the run goes on."""
    stores.fill(url, tmp_path)
    shown = visit(url)
    page = shown.go("runs")
    page.locator(".questions").get_by_role("button", name="Approve").click()
    expect(page.get_by_role("dialog").locator("code")).to_contain_text("stepkeep approve mail --step send")
    expect(page.get_by_role("dialog").locator("button[type=submit]")).to_have_count(0)
    pages = visit(url, "--allow-changes")
    page = pages.page
    page.get_by_role("link", name="Waiting").click()
    expect(page.locator(".session-key")).to_have_text(["mail"])
    page = pages.go(*(("runs",) if is_yes else ("s", "mail", "run")))
    name = "Approve" if is_yes else "Refuse"
    page.locator(".question").get_by_role("button", name=name).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Answer").fill('["anna"]' if is_yes else "not today")
    expect(dialog.locator("code")).to_contain_text("--with")
    dialog.get_by_role("button", name=name).click()
    expect(page.locator(".done")).to_contain_text("Approved" if is_yes else "Refused")
    expect(page.locator(".question")).to_have_count(0)
    assert pages.complaints == []
    with stepkeep.open(url) as store:
        saved = store.agents.load_latest("mail")
        assert saved is not None
        (question,) = saved.agent_state().questions
        assert (question.is_approved, question.answer) == (is_yes, ["anna"] if is_yes else "not today")
        result = store.execute("mail", None, lambda context: context.step.id, resume=True)
        assert result.status == ("completed" if is_yes else "failed")


def test_files_are_restored_after_a_look(visit: Visit, url: str, tmp_path: Path) -> None:
    """The pages list what would change, then restore it, and name the safety checkpoint; refusals are shown in full."""
    ids = stores.fill(url, tmp_path)
    pages = visit(url, "--allow-changes", cwd=tmp_path / "tree")
    page = pages.go("s", "files", "c", ids["before"])
    page.get_by_role("button", name="Restore files").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Show what would change").click()
    expect(dialog.locator(".preview")).to_contain_text("app.py")
    assert (tmp_path / "tree" / "app.py").read_text() == "print('two')\n"
    dialog.get_by_role("button", name="Restore files").click()
    expect(page.locator(".done")).to_contain_text("What was there before is in cp_")
    assert (tmp_path / "tree" / "app.py").read_text() == "print('one')\n"
    page = pages.go("s", "files")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Undo the last restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Undo the last restore").click()
    expect(page.locator(".done")).to_contain_text("2 files as before")
    assert (tmp_path / "tree" / "app.py").read_text() == "print('two')\n"
    elsewhere = visit(url, "--allow-changes")
    page = elsewhere.go("s", "files", "c", ids["after"])
    page.get_by_role("button", name="Restore files").click()
    page.get_by_role("dialog").get_by_role("button", name="Show what would change").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("workspace_not_named")


def test_a_session_is_deleted_only_by_its_key(visit: Visit, url: str, tmp_path: Path) -> None:
    """Deleting asks for the key of the session once more."""
    stores.fill(url, tmp_path)
    pages = visit(url, "--allow-changes")
    page = pages.go("s", "done")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Delete the session").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Delete the session").click()
    expect(dialog.get_by_role("alert")).to_contain_text("confirmation_needed")
    dialog.get_by_label("Key of the session").fill("done")
    dialog.get_by_role("button", name="Delete the session").click()
    expect(page.locator(".done")).to_contain_text("Deleted")
    with stepkeep.open(url) as store:
        assert "done" not in {info.key for info in store.sessions()}


# --- one file


def test_an_exported_file_needs_no_server(visit: Visit, url: str, tmp_path: Path) -> None:
    """The file shows timeline, states, conversation and differences by itself, and asks nobody for anything."""
    ids = stores.fill(url, tmp_path)
    output = tmp_path / "research.html"
    words = ("export", "research", "--html", str(output), "--store", url)
    assert interpreter.stepkeep(*words).returncode == 0
    assert output.stat().st_mode & 0o777 == 0o600
    pages = visit(url)
    asked = pages.open_file(output)
    page = pages.page
    page.get_by_role("link", name=re.compile("report")).click()
    page.get_by_role("button", name=re.compile("scores")).click()
    expect(page.locator(".tree .tree")).to_contain_text("2.5")
    page.get_by_role("link", name=re.compile("Conversation")).click()
    expect(page.locator(".talk")).to_contain_text("Which database?")
    page.get_by_role("link", name="what changed").click()
    expect(page.locator("h1")).to_have_text("2 → 4")
    assert pages.serious_findings() == []
    page.get_by_role("link", name="research").click()
    page.get_by_role("link", name="Find").click()
    expect(page.locator("h1")).to_be_focused()
    page.get_by_role("searchbox").fill("SLOW brown")
    page.keyboard.press("Enter")
    expect(page.locator(".found li")).to_have_count(1)
    expect(page.locator(".found li a")).to_have_text("1")
    page.get_by_role("link", name="Retention").click()
    expect(page.locator("main")).to_contain_text("stays")
    page.goto(f"{output.as_uri()}#/s/research/log?path=note&ref={ids['last']}")
    expect(page.locator(".changes li")).to_have_count(2)
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
    assert pages.complaints == []
    page.goto(f"{output.as_uri()}#/s/research/c/{ids['first']}")
    expect(page.locator("h1")).to_contain_text("plan made")


def test_files_and_outputs_are_in_an_exported_file(visit: Visit, file: Path, tmp_path: Path) -> None:
    """Captured files, their differences and what steps gave are shown without a server too."""
    ids = stores.fill(f"sqlite:{file}", tmp_path)
    for key in ("files", "deploy"):
        words = ("export", key, "--html", str(tmp_path / f"{key}.html"), "--store", f"sqlite:{file}")
        assert interpreter.stepkeep(*words).returncode == 0
    pages = visit(f"sqlite:{file}")
    pages.open_file(tmp_path / "files.html")
    page = pages.page
    page.goto(f"{(tmp_path / 'files.html').as_uri()}#/s/files/c/{ids['before']}?tab=files")
    page.get_by_role("button", name="app.py").click()
    expect(page.locator("pre.code")).to_have_text("print('one')\n")
    page.goto(f"{(tmp_path / 'files.html').as_uri()}#/s/files/compare/{ids['before']}/{ids['after']}")
    page.get_by_role("button", name="app.py").click()
    expect(page.locator(".patch .is-removed").last).to_have_text("-print('one')\n")
    pages.open_file(tmp_path / "deploy.html")
    pages.page.get_by_role("link", name="Steps").click()
    pages.page.get_by_role("button", name="build").click()
    expect(pages.page.locator("pre.code")).to_have_text("output of build")
    assert pages.complaints == []


def test_any_two_are_compared_in_an_exported_file(visit: Visit, file: Path, tmp_path: Path) -> None:
    """Two checkpoints that do not follow each other are compared in the file as the store compares them."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "image").write_bytes(b"\x00one")
    (tree / "gone.txt").write_text("gone\n")
    (tree / "app.py").write_text("".join(f"line {n}\n" for n in range(30)))
    states = [
        {"note": "the slow fox", "items": [{"n": n} for n in range(5)], "old": 1, "same": {"x": [1]}, "k": 1},
        {"note": "on the way"},
        {
            "note": "the quick fox",
            "items": [{"n": 9}, *({"n": n} for n in range(5))],
            "same": {"x": [1]},
            "k": "1",
        },
    ]
    with stepkeep.open(file) as store:
        run = store.session("s", profile="archive")
        headers = [run.save(states[0], workspace=tree), run.save(states[1])]
        (tree / "image").write_bytes(b"\x00two")
        (tree / "gone.txt").unlink()
        (tree / "app.py").write_text("".join(f"line {n}\n" for n in range(30) if n != 20) + "the end\n")
        headers.append(run.save(states[2], workspace=tree))
    output = tmp_path / "s.html"
    assert (
        interpreter.stepkeep("export", "s", "--html", str(output), "--store", f"sqlite:{file}").returncode
        == 0
    )
    pages = visit(f"sqlite:{file}")
    pages.open_file(output)
    page = pages.page
    page.get_by_label("Pick checkpoint 1 to compare").check()
    page.get_by_label("Pick checkpoint 3 to compare").check()
    page.get_by_role("link", name="Compare 1 and 3").click()
    expect(page.locator("h1")).to_have_text("1 → 3")
    assert pages.serious_findings() == []
    offline = _compared(page)
    page = pages.go("s", "s", "compare", headers[0].id, headers[2].id)
    assert offline == _compared(page)
    assert [line.splitlines()[0] for line in offline["changes"]] == [
        "items[0]",
        "kint → str",
        "note",
        "old",
    ]
    assert [name.split()[0] for name in offline["files"]] == ["app.py", "gone.txt", "image"]
    assert "-line 20" in offline["patch"]
    assert "+the end" in offline["patch"]
    assert pages.complaints == []


def _compared(page: Page) -> dict[str, list[str]]:
    """What a page of two checkpoints shows, without what only the store knows."""
    expect(page.locator(".files li")).to_have_count(3)
    found = {
        # A value that holds others is written without spaces in a file.
        "changes": sorted(text.lstrip("~+−\n ").replace(": ", ":") for text in texts(page, ".changes li")),
        "marks": texts(page, ".changes del, .changes ins"),
        "files": [text[1:].strip() for text in texts(page, ".files li")],
    }
    page.get_by_role("button", name="app.py").click()
    expect(page.locator(".patch")).to_contain_text("line 20")
    lines = texts(page, ".patch .is-added, .patch .is-removed, .patch span:not([class])")
    return {**found, "patch": [line.rstrip() for line in lines if line.strip()]}


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def test_a_timeline_in_a_file_has_no_states(visit: Visit, file: Path, tmp_path: Path) -> None:
    """`timeline --html` shows the timeline and the headers; it says what is not in it, and offers no comparison."""
    ids = stores.fill(f"sqlite:{file}", tmp_path)
    output = tmp_path / "timeline.html"
    words = ("timeline", "research", "--html", str(output), "--store", f"sqlite:{file}")
    assert interpreter.stepkeep(*words).returncode == 0
    assert "brown fox" not in output.read_text()
    pages = visit(f"sqlite:{file}")
    asked = pages.open_file(output)
    page = pages.page
    expect(page.locator(".row-main")).to_have_count(4)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("tick two")
    page.get_by_role("link", name=re.compile("plan made")).click()
    expect(page.locator("h1")).to_contain_text("plan made")
    expect(page.get_by_role("alert")).to_contain_text("not part of the file")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    page.get_by_role("link", name="Header", exact=True).click()
    expect(page.locator("main")).to_contain_text(ids["first"])
    assert pages.serious_findings() == []
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
    assert pages.complaints == []


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_stored_text_does_not_break_out_of_an_exported_file(
    visit: Visit, file: Path, tmp_path: Path, text: str
) -> None:
    """What ends an element of a page, or begins one, is text in a file too."""
    with stepkeep.open(file) as store:
        store.session(text, metadata={text: text}).save({text: text}, message=text)
    output = tmp_path / "page.html"
    words = ("timeline", text, "--html", str(output), "--store", f"sqlite:{file}")
    assert interpreter.stepkeep(*words).returncode == 0
    pages = visit(f"sqlite:{file}")
    pages.open_file(output)
    page = pages.page
    expect(page.locator(".row-main")).to_have_count(1)
    assert page.evaluate("() => window.hacked") is None
    assert pages.complaints == []
