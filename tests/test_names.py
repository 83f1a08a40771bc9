"""A word has one meaning: no name stands for types of three or more files, so that a reader who meets it knows which is meant."""

import collections
import re

from test_documents import ROOT

TYPE = re.compile(r"^(?:pub(?:\([a-z:]+\))? )?(?:unsafe )?(?:struct|enum|trait|union|type) ([A-Z]\w*)", re.MULTILINE)


def is_code(path):
    """Tests have their own small worlds; names are repeated there."""
    return not ({"tests", "benches"} & set(path.parts)) and not path.name.startswith("test")


def test_no_type_name_stands_in_three_files():
    files = collections.defaultdict(set)
    for path in filter(is_code, sorted((ROOT / "crates").rglob("*.rs"))):
        code = path.read_text().split("#[cfg(test)]\nmod ")[0]
        for name in TYPE.findall(code):
            files[name].add(str(path.relative_to(ROOT)))
    assert len(files) > 500, "types are found"
    assert {name: sorted(where) for name, where in files.items() if len(where) > 2} == {}
