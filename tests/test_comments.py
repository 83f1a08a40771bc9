"""Comments are no wider than the code."""

import pytest
from wrap_comments import ROOT, WIDTH, wrapped

CRATES = sorted({path.parent.name for path in ROOT.glob("crates/*/Cargo.toml")})


@pytest.mark.parametrize("crate", CRATES)
def test_no_comment_is_wider_than_the_code(crate):
    files = sorted((ROOT / "crates" / crate).rglob("*.rs"))
    wide = [str(file.relative_to(ROOT)) for file in files if wrapped(file.read_text()) != file.read_text()]
    assert wide == [], "scripts/wrap_comments.py wraps them"


def test_a_wide_comment_takes_the_rest_of_its_paragraph_along():
    words = " ".join(["word"] * 30)
    text = f"    /// {words}\n    /// end.\n    ///\n    /// - {words} - {words}\n    ///   end.\n    fn f() {{}} // {words}\n"
    lines = wrapped(text).split("\n")
    assert max(len(line) for line in lines if "//" in line and "fn" not in line) <= WIDTH
    assert lines[1].startswith("    /// word") and lines[1].endswith(" end.") and lines[2] == "    ///"
    assert all(line.startswith("    ///   ") for line in lines[4:-2]), "a list's item hangs"
    assert not any(line.strip().startswith("///   - ") for line in lines)
    assert [w for w in text.split() if w != "///"] == [w for w in wrapped(text).split() if w != "///"]
    assert wrapped(wrapped(text)) == wrapped(text)


@pytest.mark.parametrize("line", ["//! | a table " + "x " * 80, "//  a ──drawing── " + "x " * 80, "let a = 1; // " + "x " * 80])
def test_what_cannot_be_wrapped_is_left_alone(line):
    assert wrapped(line) == line
    fenced = f"/// ```text\n/// {'x ' * 80}\n/// ```"
    assert wrapped(fenced) == fenced
