# make replay and make test each work alone on a fresh machine.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export SPECREPLAY_WAREHOUSE ?= $(CURDIR)/warehouse

.PHONY: setup triton replay test test-all dashboard nightly bench lint chromium trace

setup:
	@requirements/install.sh

trace: setup
	@specreplay ingest examples/trace --trace demo --tokenizer examples/models/target

replay: trace ## the demo trace through a real vLLM engine with every proposer, then along the recorded outputs
	specreplay replay examples/configs/live.toml
	specreplay replay examples/configs/recorded.toml

test: setup chromium lint
	python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu and not slow"

test-all: setup chromium lint triton
	SPECREPLAY_TEST_TRITON=$(CURDIR)/.venv/triton python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

triton: setup # vLLM's V2 runner without a GPU: Triton's interpreter runs its kernels
	@[ -d .venv/triton ] || pip install -q --no-deps --target .venv/triton triton==3.7.1 || echo "no Triton here: V2 is not tested"

lint: setup
	ruff check .
	ruff format --check .
	ty check schemas replay pipeline dashboards

chromium: # the browser tests drive Debian's own
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; }

dashboard: trace
	specreplay dashboard

nightly: trace
	specreplay nightly examples/configs/recorded.toml --date 2026-11-24

bench: setup
	@for b in $$(grep -l __main__ tests/benchmarks/*.py); do echo "== $$b"; PYTHONPATH=. python $$b || exit 1; done
