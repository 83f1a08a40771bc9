# Two commands do everything from a fresh clone: `make serve` and `make test`.
.PHONY: help serve test setup setup-solver models place bench compare experiments experiments-all format clean

help:
	@echo "make serve        build, fetch sample models, serve them on http://localhost:8000"
	@echo "make test         format, lints, documentation, every test"
	@echo "make place ARGS=FILE  which models share which part of a cluster; builds a solver first, which takes minutes"
	@echo "make bench        every figure of docs/benchmarks.md, measured on this machine"
	@echo "make compare      the same model in other servers beside this one, docs/comparison.md"
	@echo "make experiments  every simulated figure of docs/experiments, with its plots"
	@echo "make experiments-all  the same, and the sweeps that take hours; an interrupted one goes on"
	@echo "make clean        remove what was built and fetched"

setup:
	@scripts/setup.sh

setup-solver:
	@scripts/setup.sh solver

models: setup
	@scripts/setup-runtime.sh
	@scripts/fetch-models.sh

serve: models
	@scripts/cargo.sh build --release -p cli
	@target/release/punctual serve --model-repository models $(ARGS)

test: setup-solver
	@scripts/test.sh

place: setup-solver
	@scripts/cargo.sh build --release -p cli --features placement
	@target/release/punctual place $(ARGS)

bench: models
	@scripts/cargo.sh build --release -p cli
	@scripts/bench.sh $(ARGS)

compare: models
	@scripts/cargo.sh build --release -p cli
	@scripts/compare.sh $(ARGS)

experiments: setup
	@scripts/cargo.sh build --release -p cli
	@scripts/experiments.sh $(ARGS)

experiments-all: setup
	@scripts/cargo.sh build --release -p cli
	@scripts/experiments.sh --all $(ARGS)

format:
	@scripts/cargo.sh fmt --all

clean:
	rm -rf target .cache models
