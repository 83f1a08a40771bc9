"""What the page of benchmarks says about its age."""

import subprocess

from figures.bench import report

PAGE = """# Benchmarks

Words.

## Overhead

A table.

2 cores, commit 1111111; load average 0.74.

## Overload

2 cores, commit 2222222; load average 2.52.

## Placement

Nobody knows.
"""


def test_sections_of_other_code_are_named():
    dated = report.dated(PAGE, {"1111111"}.__contains__)
    line = "**Older than the code:** Overhead (1111111); Placement (of an unknown commit). `make bench` measures again."
    assert dated == PAGE.replace("# Benchmarks\n\n", f"# Benchmarks\n\n{line}\n\n")


def test_a_line_is_written_anew_and_goes_with_its_reason():
    older = report.dated(PAGE, lambda commit: True)
    assert report.dated(older, lambda commit: True) == older
    known = older.replace("Nobody knows.", "2 cores, commit 3333333.")
    assert report.dated(known, lambda commit: False) == PAGE.replace("Nobody knows.", "2 cores, commit 3333333.")


def test_a_page_of_one_commit_has_it_in_its_head():
    page = PAGE.replace("Words.", "Commit 4444444, today.")
    assert "Placement (4444444)" in report.dated(page, lambda commit: True)
    assert report.OLDER not in report.dated(page, lambda commit: False)


def test_code_is_older_where_its_crates_differ(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        return subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def committed(path, text):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        git("add", "-A")
        git("commit", "-qm", "one")
        return git("rev-parse", "HEAD").strip()

    git("init", "-q")
    first, second = committed("crates/code", "1"), committed("crates/code", "2")
    committed("page", "words")
    assert report.has_changed(first, tmp_path)
    assert not report.has_changed(second, tmp_path)
    assert report.has_changed("0" * 40, tmp_path)
