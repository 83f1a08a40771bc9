# Two commands do everything from a fresh clone: `make serve` and `make test`.
.PHONY: help serve test setup models release place bench compare experiments experiments-all soak fuzz audit sbom format clean

# Also right after it was installed, when this shell doesn't know of it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

help:
	@echo "make serve        build, fetch sample models, serve them on http://localhost:8000"
	@echo "make test         format, lints, documentation, every test"
	@echo "make release      target/release/punctual, the program as it is measured; make serve builds a slower one sooner"
	@echo "make place ARGS=FILE  which models share which part of a cluster; builds a solver first, which takes minutes"
	@echo "make bench        every figure of docs/benchmarks.md, measured on this machine"
	@echo "make compare      the same model in other servers beside this one, docs/comparison.md"
	@echo "make experiments  every simulated figure of docs/experiments, with its plots"
	@echo "make experiments-all  the same, and the sweeps that take hours; an interrupted one goes on"
	@echo "make soak ARGS=\"--minutes 60\"  good clients beside hostile ones: nothing may grow, get lost or become slow"
	@echo "make fuzz ARGS=\"--minutes 20\"  libFuzzer on every parser, for so long each; docs/fuzzing.md has what it found"
	@echo "make audit        known vulnerabilities of what is depended on (cargo-deny, from the RustSec database)"
	@echo "make sbom         target/punctual.cdx.json, the crates in the binary, for scanners (CycloneDX)"
	@echo "make clean        remove what was built and fetched"

setup:
	@scripts/setup tools

models: setup
	@scripts/setup runtime models

serve: models
	@cargo build --profile quick -p cli
	@target/quick/punctual serve --model-repository models $(ARGS)

test:
	@scripts/setup tools solver
	@scripts/test.sh

release: setup
	@cargo build --release -p cli

place:
	@scripts/setup tools solver
	@cargo build --release -p cli --features placement
	@target/release/punctual place $(ARGS)

bench: models release
	@scripts/bench.sh $(ARGS)

compare: models release
	@scripts/compare.sh $(ARGS)

experiments: release
	@scripts/experiments.sh $(ARGS)

experiments-all: release
	@scripts/experiments.sh --all $(ARGS)

soak: models release
	@scripts/setup python
	@.cache/venv/bin/python scripts/measure.py soak $(ARGS)

fuzz: setup
	@scripts/fuzz.py $(ARGS)

audit: setup
	@cargo deny --version >/dev/null 2>&1 || cargo install --locked --quiet cargo-deny
	@cargo deny check $(ARGS)

sbom: setup
	@scripts/sbom.py $(ARGS)

format:
	@scripts/wrap_comments.py
	@cargo fmt --all

clean:
	rm -rf target .cache models
