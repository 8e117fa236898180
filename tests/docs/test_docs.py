"""The documents are true: examples run, names and codes are those of the code, links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep.api.investigating import Investigation
from stepkeep.codec.integrity import chain_of, open_header
from tests import interpreter
from tests.interop import fake_models
from tests.interop.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stepkeep"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([a-z]+(?:_[a-z]+)*)`")
_RAISED = (
    re.compile(r'\bcode="(\w+)"'),
    re.compile(r'^    code(?:: str)? = "(\w+)"', re.MULTILINE),
    re.compile(r'^[A-Z_]+: Final = "((?:checkpoint|state)_\w+)"', re.MULTILINE),
)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _blocks(page: Path) -> Iterator[tuple[str, str, int]]:
    """Language, text and line of every fenced block."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start(2)) + 1


# The page of a framework runs in the framework's environment, by `./dev interop`.
_NOT_HERE = {each.page for each in FRAMEWORKS if not each.is_installed}


def _examples(page: Path) -> list[tuple[str, str, int]]:
    return [block for block in _blocks(page) if block[0] in ("python", "pycon")]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models that answer without a network, for the pages with their clients."""
    with fake_models.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPKEEP_STORE", "sqlite:default.db")
    monkeypatch.setenv("PYTHONPATH", str(SOURCE.parent))  # a relative one would miss from here


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _examples(page) and page.name not in _NOT_HERE], ids=_name
)
def test_examples_run(
    page: Path, in_empty_folder: None, models: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python blocks of a page run from top to bottom, and those with a prompt print what the page shows."""
    names: dict[str, object] = {"__name__": "example"}
    for language, text, line in _examples(page):
        if language == "python":
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)
        else:
            _run_session(text, names, page, line)


def _run_session(text: str, names: dict[str, object], page: Path, line: int) -> None:
    session = doctest.DocTestParser().get_doctest(text, names, _name(page), str(page), line - 1)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    # Names must live on: a page is one session.
    runner.run(session, out=report.append, clear_globs=False)
    names.update(session.globs)
    assert not runner.failures, "".join(report)


def _commands(page: Path) -> list[str]:
    """The `stepkeep` command lines of a page."""
    lines = [line for language, text, _ in _blocks(page) if language == "sh" for line in text.splitlines()]
    return [line for line in lines if line.startswith("stepkeep ")]


@pytest.mark.full
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if _commands(page) and page.name != "README.md"],  # its blocks are walked through
    ids=_name,
)
def test_commands_run(page: Path, in_empty_folder: None) -> None:
    """The command lines of a page succeed one after the other, beginning with an empty folder."""
    for line in _commands(page):
        done = interpreter.stepkeep(*shlex.split(line, comments=True)[1:])
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "tutorial.md"], ids=_name)
def test_who_begins_uses_the_defaults_and_reads_what_is_kept(page: Path) -> None:
    """The first pages name no profile, and one line says what the default keeps."""
    text = page.read_text(encoding="utf-8")
    assert "profile=" not in text
    assert "Every checkpoint is kept until a session takes 1 GiB" in text.replace("\n", " ")


def test_the_reference_names_what_is_public() -> None:
    """The Python reference has exactly one heading for each public name."""
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == sorted(stepkeep.__all__)


@pytest.mark.parametrize("name", ["Store", "Session", "Checkpoint", "Pending"])
def test_the_reference_names_every_public_member(name: str) -> None:
    """The section of a class names each of its public methods and properties."""
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    section = text.split(f"### `{name}`\n")[1].split("\n### ")[0]
    members = {member for member in vars(getattr(stepkeep, name)) if not member.startswith("_")}
    assert members <= set(re.findall(r"`(\w+)", section))


def test_the_guide_names_every_member_of_an_investigation() -> None:
    """Experiments too: what a program can do with one is said where it is explained."""
    text = _FENCE.sub("", (ROOT / "docs/how-to/investigate-a-bug.md").read_text(encoding="utf-8"))
    named = {name for code in re.findall(r"`([^`]+)`", text) for name in re.findall(r"\w+", code)}
    assert {member for member in dir(Investigation) if not member.startswith("_")} <= named


@pytest.mark.parametrize("option", sorted(stepkeep.SaveOptions.__annotations__))
def test_the_reference_names_every_save_option(option: str) -> None:
    """The section of the save options names each of them."""
    text = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    assert f"`{option}`" in text.split("### `SaveOptions`\n")[1].split("\n### ")[0]


def _raised_codes() -> set[str]:
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    return {code for text in sources for pattern in _RAISED for code in pattern.findall(text)}


def test_every_error_code_is_documented() -> None:
    """Each code in the source stands in the list of errors."""
    documented = set(_CODE.findall((ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")))
    assert _raised_codes() - documented == set()


def test_every_documented_error_code_exists() -> None:
    """The tables of codes name none that the source does not have."""
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8").split("## Codes")[1]
    first_columns = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    documented = {code for column in first_columns for code in _CODE.findall(column)}
    assert documented - _raised_codes() == set()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page is a file or folder of the repository, and its anchor a heading there."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{_name(page)} links to {link}"
        assert ROOT in (target, *target.parents), f"{_name(page)} links out of the repository: {link}"
        assert not anchor or anchor in _anchors(target), f"{_name(page)} links to {link}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_headers_of_the_format_are_sealed() -> None:
    """The sealed headers shown in the format verify, and the second names the chain value of the first."""
    blocks = [
        text.strip() for language, text, _ in _blocks(ROOT / "docs/design/format.md") if language == "json"
    ]
    first, second = (open_header(text.encode()) for text in blocks if text.startswith('{"v":'))
    assert second.parents == (first.id,)
    assert second.parent_chains == (chain_of(blocks[0].encode()),)
