# Every command a person or CI needs. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
PROGRAM := .venv/.program
STAMP := .venv/.ready
EMULATORS := .venv-emulators/.ready
DOCS := .venv-docs/.ready

.PHONY: help install setup emulators demo dev up-aws up-postgres test test-long crash-points check format docs reference vendor screenshots bench bench-peers dist clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(PROGRAM) ## make .venv with the `conveyor` command and the official client

setup: $(STAMP) $(EMULATORS) ## make .venv with the `conveyor` command, and what tests need beside it

emulators: $(EMULATORS) ## make .venv-emulators, with what stands in for AWS in tests

# What pip is doing, in one line on a terminal and in three elsewhere.
PIP = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt
SHOWN = awk -v live=$$(test -t 2 && echo 1) ' \
	/^(Collecting|Processing)/ { n++; if (live) { printf "\r\033[K  %d packages: %s", n, $$2; fflush() } } \
	/^Installing collected/ { printf "%s  %d packages found, installing them ...\n", live ? "\r\033[K" : "", n; fflush() }'

$(PROGRAM): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Conveyor needs Python 3.11 to 3.14; set PYTHON=python3.x" if not (3, 11) <= sys.version_info < (3, 15) else 0)'
	@test -x $(BIN)/python || { echo "Making .venv ..."; $(PYTHON) -m venv .venv; }
	@echo "Installing Conveyor into .venv ..."
	@{ $(PIP) -e '.[demo]' || echo $$? > .venv/.failed; } | $(SHOWN); ! test -e .venv/.failed || { rm .venv/.failed; exit 1; }
	@touch $(PROGRAM)

$(STAMP): $(PROGRAM)
	@echo "Installing what the tests need into .venv ..."
	@$(PIP) --quiet -e '.[dev]'
	@touch $(STAMP)

$(EMULATORS): emulators.txt
	@test -x .venv-emulators/bin/python || $(PYTHON) -m venv .venv-emulators
	@echo "Installing emulators of AWS into .venv-emulators ..."
	@.venv-emulators/bin/python -m pip install --quiet --disable-pip-version-check -r emulators.txt
	@touch $(EMULATORS)

demo: $(if $(ENGINE),setup,$(PROGRAM)) ## scrape 1,000 URLs through the official client; ENGINE=aws or postgres, on a deployment
	@$(BIN)/conveyor demo $(if $(ENGINE),--engine $(ENGINE))

dev: $(PROGRAM) ## run the service on http://127.0.0.1:8080 with a mock gateway
	@$(BIN)/conveyor dev --mock-gateway

up-aws: setup ## run a deployment on emulated AWS with one api and two workers, until it is stopped
	@$(BIN)/python -m conveyor.testing.local aws --port $(or $(PORT),8080)

up-postgres: setup ## run a deployment on PostgreSQL with one api and two workers, until it is stopped
	@$(BIN)/python -m conveyor.testing.local postgres --port $(or $(PORT),8080)

test: setup ## run the tests, with the real engines they need
	@$(BIN)/pytest -m 'not long'

test-long: setup ## run every test, soaks and all crash points included; PART=2/4 runs a quarter
	@COLD_STARTS=1 $(BIN)/pytest -m 'long or not long' --timeout 1800 $(if $(PART),--part $(PART))

crash-points: $(STAMP) ## list the points at which the tests let the program die
	@PYTHONPATH=. $(BIN)/python -m tests.crash

check: $(STAMP) ## lint, types and the import rule
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n 0 tests/architecture

format: $(STAMP) ## put the code in its form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(DOCS) ## build the site of the documentation, with search, and check its links
	@.venv-docs/bin/python -m tests.docs.site .venv-docs/bin/mkdocs
	@echo "The site is in build/docs/site: python3 -m http.server --directory build/docs/site --bind 127.0.0.1"

$(DOCS): docs/requirements.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@echo "Installing mkdocs into .venv-docs ..."
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $(DOCS)

reference: $(STAMP) ## write docs/reference and the rules of Prometheus from the code and the alarms
	@$(BIN)/python -m tests.docs.reference

vendor: $(STAMP) ## fetch the vendored files of npm packages again, by their checksums
	@PYTHONPATH=. $(BIN)/python -m tests.vendor

screenshots: $(STAMP) ## take the pictures of the dashboard in docs/images
	@PYTHONPATH=. $(BIN)/python -m tests.docs.screenshots

bench: $(STAMP) ## measure against the scripts people would write instead
	@$(BIN)/python -m benchmarks

bench-peers: $(STAMP) ## measure the queues and crawlers people would use instead
	@$(BIN)/python -m benchmarks.peers

dist: $(STAMP) ## build the wheel and the source distribution in dist
	@$(BIN)/python -m build --outdir dist .

clean: ## remove what the other commands made
	@rm -rf .venv .venv-docs .venv-emulators .venv-peers build dist demo data run .mypy_cache .ruff_cache .pytest_cache .hypothesis
