# The commands of this project. `make help` lists them.
#
# Everything lives in one virtual environment, $(VENV). Each target installs the extras
# it needs into it, at the releases that constraints.txt pins. No target installs a
# system package: `.ci/run` does, and `make test-system` names what is missing.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet
OLDEST := $(VENV)-oldest
BARE := $(VENV)-bare
# The Python of `make test-bare`: any supported one, as torch is not needed there.
BARE_PYTHON ?= $(PYTHON)

# Folders whose tests need more than this environment: root, system packages, another
# environment.
OTHER_TESTS := tests/browser tests/bare

# Doctest imports every module, and this one rewrites torch.cuda when it is imported.
REWRITES_TORCH := npu_notebook/devices/simulated/contrib

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test lint test-python test-system test-oldest test-bare docs bench constraints clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 16

quickstart: $(VENV)/.has-notebooks ## install into .venv and train a model on four simulated NPUs
	$(BIN)/python notebooks/play.py notebooks/02-train-ddp.ipynb

test: lint test-python ## format, lint, types, layers, all tests that need only Python and a compiler

lint: $(VENV)/.has-test $(VENV)/.has-lint ## format, lint, types, layers, changelog fragments
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/towncrier build --draft --version next > /dev/null

test-python: $(VENV)/.has-test ## the tests alone
	$(BIN)/python -m pytest --doctest-modules npu_notebook --ignore=$(REWRITES_TORCH)
	$(BIN)/python -m pytest tests $(addprefix --ignore=,$(OTHER_TESTS))

test-system: $(VENV)/.has-test $(VENV)/.has-browser ## tests that need system packages: a real JupyterLab in Chromium
	$(BIN)/python -m pytest tests/browser

test-oldest: $(OLDEST)/.installed ## a part of the tests with the oldest supported dependencies
	$(OLDEST)/bin/python -m pytest tests/unit tests/package/test_versions.py tests/cluster tests/notebook

test-bare: $(BARE)/.installed ## the package without torch, with the Python named by BARE_PYTHON
	$(BARE)/bin/python -m pytest tests/bare

docs: $(VENV)/.has-docs ## build the documentation; a warning is an error
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.has-test ## measure, and compare with the references of the same run
	$(BIN)/python -m benchmarks

# An empty environment with all extras, frozen. Commit the result after `make test`.
constraints: ## renew constraints.txt from the newest releases (torch stays as pinned)
	rm -rf $(VENV)-constraints
	$(PYTHON) -m venv $(VENV)-constraints
	grep '^torch==' constraints.txt > $(VENV)-constraints/torch.txt
	$(VENV)-constraints/bin/python -m pip install --quiet -c $(VENV)-constraints/torch.txt -e '.[notebooks,test,browser,lint,docs]'
	{ sed -n '/^#/p' constraints.txt; \
	  $(VENV)-constraints/bin/python -m pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\)+.*/\1/' | sort -f; \
	} > $(VENV)-constraints/new.txt
	mv $(VENV)-constraints/new.txt constraints.txt
	rm -rf $(VENV)-constraints

clean: ## remove environments, builds and caches of the tools
	rm -rf $(VENV) $(OLDEST) $(BARE) $(VENV)-constraints build dist docs/_build test-results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find npu_notebook tests benchmarks notebooks docs -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("npu_notebook needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per extra: installed again when what it was made from has changed.
$(VENV)/.has-%: $(VENV)/.made pyproject.toml constraints.txt kernelspec/kernel.json
	@echo "Installing into $(VENV): $* (minutes, the first time)"
	@$(PIP_INSTALL) -c constraints.txt -e '.[$*]'
	@touch $@

# torch and the test tools are borrowed from $(VENV): its folder comes last in sys.path,
# so what is installed here hides it.
$(OLDEST)/.installed: $(VENV)/.has-test tests/package/oldest.txt pyproject.toml
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet -c tests/package/oldest.txt -e .
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(OLDEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_borrowed.pth"
	@touch $@

$(BARE)/.installed: pyproject.toml constraints.txt kernelspec/kernel.json
	rm -rf $(BARE)
	$(BARE_PYTHON) -m venv $(BARE)
	$(BARE)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e . pytest pytest-timeout
	@touch $@
