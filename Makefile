# Everything runs from .venv/, made by plain venv and pip from requirements.lock: the versions of constraints.txt, each
# file with its hash. What must be built (PySpark) is built by the setuptools of the lock, which is installed first.
PYTHON ?= python3
BIN := .venv/bin

# Empty: hundreds of short processes share compiled files, also where the environment (a container's) forbids to write.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup wheel lock audit demo patterns test test-fast test-long check check-tests format docs bench clean

setup: .venv/.installed

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-compile
# PySpark is half of what is fetched, and is built: beside the others, and not compressed, as it is unpacked at once.
STORED := --config-settings=--build-option=--compression=stored

.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + " (make PYTHON=python3.12 …)")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	grep '^setuptools==' requirements.lock > .venv/build.txt
	$(INSTALL) --require-hashes -r .venv/build.txt
	grep '^pyspark==' requirements.lock > .venv/spark.txt
	grep -v '^pyspark==' requirements.lock > .venv/others.txt
	$(INSTALL) --require-hashes --no-build-isolation $(STORED) -r .venv/spark.txt & spark=$$!; \
	$(INSTALL) --require-hashes --no-build-isolation -r .venv/others.txt; others=$$?; wait $$spark && exit $$others
	$(INSTALL) --no-build-isolation -e .
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true  # on all cores, which pip does not use
	$(BIN)/python -m saga_spark.runner.class_data_sharing || true
	touch $@

# What is installed where there is no clone, in build/wheel.
wheel: setup
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .

# After a change of constraints.txt.
lock:
	$(BIN)/python deploy/supply_chain/lock.py

# The lock compared with the index, licences compared with those that are accepted, and build/bom.json (CycloneDX).
audit: setup
	$(BIN)/python deploy/supply_chain/lock.py --check
	$(BIN)/python deploy/supply_chain/audit.py

demo: setup
	cd definitions/retail && ../../$(BIN)/python -m demo

# Every pattern of definitions/patterns on real servers, and one table: outcome, what was killed, what was checked.
patterns: setup
	$(BIN)/pytest -q --no-header -m "slow or not slow" tests/patterns $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The types in the tests: a stale call in a test that is rarely run is found without running it. They cost as much CPU
# as those of the product again, which CI has no time for.
check-tests: setup
	$(BIN)/pyright tests

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Files are taken in the order of collection, long ones first (tests/conftest.py). The cells of the fault matrix run
# concurrently in one of the processes. More than six of them, with their servers, do not fit into 24 GB. What the
# timeout of a test cannot end, a call into C, ends its process.
test: setup
	$(BIN)/pytest -n 6 --dist loadfile --no-loadscope-reorder \
		-o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true $(PYTEST_ARGS)

# What needs no server: a minute and a half.
test-fast: setup
	$(BIN)/pytest -n 2 tests/unit tests/replay tests/docs/test_pages.py tests/docs/test_python_api_page.py $(PYTEST_ARGS)

# What `make test` leaves out, and with more examples what it draws (tests/helpers/sampling.py).
test-long: check-tests
	$(BIN)/pytest -m "slow or scaled" --hypothesis-profile long $(PYTEST_ARGS)

# The site, in build/site. A dead link fails the build.
docs: setup
	$(BIN)/python -m mkdocs build --strict

# All measurements; one of them alone: make bench BENCH=staging
bench: setup
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf .venv build *.egg-info
