#!/usr/bin/env python3
"""Wraps the comments of Rust files that are wider than the code may be; rustfmt does that only in its nightly version.

A comment that fits is left as it is. So are drawings, tables, headings and what stands between ``` and ```.

    scripts/wrap_comments.py [FILE ...]     by default every file below crates/
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH = int(re.search(r"^max_width = (\d+)$", (ROOT / "rustfmt.toml").read_text(), re.M).group(1))
COMMENT = re.compile(r"(\s*//[/!]?)(?: (.*))?$")
# What begins a list in Markdown, or a heading, a quotation, a row of a table.
MARK = re.compile(r"([-+*>|]|#+|\d+[.)])$")
ITEM = re.compile(r"(\s*)([-+*]|\d+[.)]) ")
FIXED = re.compile(r"\s*(#|\||```)|.*\S {2,}\S|.*[─│┌└┬┤├]")


def wrapped(text):
    """The text with its wide comments in several lines."""
    lines, done, fenced = text.split("\n"), [], False
    while lines:
        line = lines.pop(0)
        found = COMMENT.match(line)
        if found and (found[2] or "").strip().startswith("```"):
            fenced = not fenced
        elif not found:
            fenced = False
        if fenced or not found or len(line) <= WIDTH or FIXED.match(found[2] or ""):
            done.append(line)
            continue
        marker, words = found[1], found[2].split()
        while lines and continues(lines[0], marker):
            words += COMMENT.match(lines.pop(0))[2].split()
        done += paragraph(marker, found[2], words)
    return "\n".join(done)


def continues(line, marker):
    """Whether a line goes on with the paragraph before it."""
    found = COMMENT.match(line)
    if not found or found[1] != marker or not (found[2] or "").strip():
        return False
    return not ITEM.match(found[2]) and not FIXED.match(found[2])


def paragraph(marker, first, words):
    """The words in lines, below the first word of the first line."""
    item = ITEM.match(first)
    indent = len(first) - len(first.lstrip())
    start, hang = " " * (indent + 1), " " * (1 + (item.end() if item else indent))
    lines, line = [], []
    for word in words:
        begin = hang if lines else start
        if line and len(marker + begin + " ".join([*line, word])) > WIDTH:
            # A word that would begin a list takes the one before it along.
            along = [line.pop()] if MARK.match(word) and len(line) > 1 else []
            lines.append(marker + begin + " ".join(line))
            line = along
        line.append(word)
    return [*lines, marker + (hang if lines else start) + " ".join(line)]


def main():
    for file in map(pathlib.Path, sys.argv[1:] or sorted(ROOT.glob("crates/**/*.rs"))):
        text = file.read_text()
        if wrapped(text) != text:
            file.write_text(wrapped(text))


if __name__ == "__main__":
    main()
