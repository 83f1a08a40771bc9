"""What documents point at is there: files that they link to, headings, and the functions that the tour names."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "notes").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A file and names in it: [`call.rs`](../crates/gateway/src/call.rs) -> `Call::begin`, `run`
STEP = re.compile(r"\]\((?P<file>[^)]+)\)\s+->\s+(?P<names>`[^`]+`(?:,\s+`[^`]+`)*)")


def prose(text):
    """A page without its code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The names under which a page's headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_links(page):
    """The links of a page that lead nowhere."""
    missing = []
    for target in LINK.findall(prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        lost = not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()))
        if lost or not file.is_relative_to(ROOT):
            missing.append(target)
    return missing


def missing_names(page):
    """What a page gives as `file` -> `name` and the file doesn't define."""
    missing = []
    for step in STEP.finditer(prose(page.read_text())):
        file = page.parent / step["file"]
        code = file.read_text() if file.is_file() else ""
        for name in re.findall(r"`([^`]+)`", step["names"]):
            *owner, last = name.split("::")
            defined = re.search(rf"\b(fn|struct|enum|trait|type|const|mod|def|class|pub) {last}\b", code)
            used = owner and name in code
            if not ((defined and all(re.search(rf"\b{of}\b", code) for of in owner)) or used):
                missing.append(f"{step['file']} -> {name}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert missing_links(page) == []


def test_the_tour_names_what_is_in_the_code():
    tour = ROOT / "docs" / "tour.md"
    assert len(STEP.findall(prose(tour.read_text()))) > 40
    assert missing_names(tour) == []


def test_every_note_is_in_the_index_and_has_the_three_parts():
    notes = sorted((ROOT / "docs" / "notes").glob("[0-9]*.md"))
    index = (ROOT / "docs" / "notes" / "README.md").read_text()
    assert [note.name for note in notes if f"]({note.name})" not in index] == []
    assert [int(note.name[:3]) for note in notes] == list(range(1, len(notes) + 1))
    for note in notes:
        headings = re.findall(r"^## (\w+)", note.read_text(), flags=re.MULTILINE)
        assert headings[0] == "Context" and headings[-1] == "Consequences" and set(headings[1:-1]) == {"Decision"}, note.name


def test_a_lost_link_and_a_lost_name_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "there.rs").write_text("impl Thing {\n    pub fn run(&self) {}\n}\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n[here](#a-page) [there](there.rs) [gone](gone.rs) [nowhere](#gone) [away](https://example.org)\n"
        "```text\n[code](isn't.read)\n```\n"
        "[`there.rs`](there.rs) -> `Thing::run`, `walk`,\n`run` and [`there.rs`](there.rs)\n-> `Other::run`\n"
    )
    assert missing_links(page) == ["gone.rs", "#gone"]
    assert missing_names(page) == ["there.rs -> walk", "there.rs -> Other::run"]
