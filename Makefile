# Every target makes the environment it needs by itself: nothing is required beyond make and
# Python >= 3.11 with venv. Environments lie in $(ENVS) and are made anew when pyproject.toml or
# constraints.txt changes.
#
#   make quickstart     a real federation on real data, one client killed on the way, no torch needed
#   make test           the tests                    make check    ruff, format, mypy
#   make proto          compile messages.proto       make mutants  remove each guard, expect red
#   make kernels        the kernels' tests with triton, whose environment is 1 GB larger
#   make brute          every loss at every boundary, up to 12 members; ranks killed at any moment (minutes)
#   make acceptance     real federations: processes killed at every moment, strangers, endings (minutes)
#   make soak           1,000 rounds among 20 clients with faults, every parser fuzzed (an hour)
#   make chaos          servers killed at every moment of a round; each of `umbel up`, front too (minutes)
#   make large          a round over a model of 2.5 GB, 500 rounds, 64 clients: the core's memory (minutes)
#   make bench          the benchmarks as JSON       make clean    remove what these made
#
# PYTHON=/path/to/python3.12 chooses the interpreter; ARGS="tests/test_house.py -x" goes to pytest.

PYTHON ?=
ENVS   ?= .envs
ARGS   ?=

# Millions of small files, of which none is looked at twice: on a disk they take most of the time.
MEMORY := $(firstword $(wildcard /dev/shm) /tmp)

QUICK := $(ENVS)/quickstart
TEST  := $(ENVS)/test
KERN  := $(ENVS)/kernels
PROTO := $(ENVS)/proto

EXTRAS_quickstart := [simulation]
EXTRAS_test       := [dev,torch,fast,server,simulation,data-mnist]
EXTRAS_kernels    := [dev,torch,fast,gpu,server,simulation]

# The first interpreter that is new enough and can make environments; one line when there is none.
FIND_PYTHON = for p in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && { command -v $$p; exit 0; }; done; \
	  echo "umbel: needs Python 3.11 or newer with venv, found $$($(or $(PYTHON),python3) -V 2>&1 | tail -n 1);" \
	    "install one or say make PYTHON=/path/to/python3" >&2; exit 1

.PHONY: quickstart test check kernels proto mutants brute acceptance soak chaos large bench clean

quickstart: $(QUICK)/stamp
	$(QUICK)/bin/umbel up examples/digits --drop 1

test: $(TEST)/stamp
	$(TEST)/bin/python -m pytest $(ARGS)

check: $(TEST)/stamp
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy

mutants: $(TEST)/stamp
	$(TEST)/bin/python tests/mutants.py

kernels: $(KERN)/stamp
	$(KERN)/bin/python -m pytest tests/test_robust_kernels.py \
	  tests/test_trimmed_stream.py tests/test_triton_tiles.py $(ARGS)

brute: $(TEST)/stamp
	$(TEST)/bin/python -m pytest -m "slow or not slow" tests/test_bruteforce.py tests/test_run_check.py \
	  tests/test_disk_faults.py tests/test_disk_full_runs.py tests/test_ranked_world.py \
	  tests/test_rank_deaths.py tests/test_bench_ranks.py tests/test_robust_rounds.py \
	  tests/test_ranked_rows.py tests/test_flower_streaming.py $(ARGS)

acceptance: $(TEST)/stamp
	$(TEST)/bin/python -m pytest -m "slow or not slow" tests/test_flower_apps.py \
	  tests/test_up_acceptance.py tests/test_up_endings.py tests/test_up_survives.py tests/test_watched_up.py \
	  tests/test_watched_server.py tests/test_watched_clock.py \
	  tests/test_disk_up.py tests/test_up_ranks.py tests/test_namespaces.py tests/test_joining.py tests/test_sni.py \
	  tests/test_agent.py \
	  tests/test_limits_network.py tests/test_flower_launcher.py \
	  tests/test_install.py tests/test_walls.py tests/test_bench_footprint.py tests/test_spread_world.py \
	  tests/test_issuer_process.py tests/test_issuer_killed.py \
	  tests/test_spread_rounds.py tests/test_membership_live.py tests/test_native_layers.py tests/test_native_workloads.py \
	  tests/test_bench_fold.py tests/test_bench_ingest.py tests/test_bench_round.py tests/test_restored.py \
	  tests/test_bench_plan.py tests/test_bench_robust.py \
	  tests/test_example_mnist.py tests/test_plan_covers.py tests/test_population.py tests/test_fleet_runs.py \
	  tests/test_torch_epoch.py tests/test_torch_replicas.py tests/test_bench_simulate.py tests/test_plan_memory.py \
	  tests/test_network.py tests/test_lease.py tests/test_core_rounds.py tests/test_crowd.py tests/test_resume.py \
	  tests/test_capacity_fleets.py tests/test_capacity_flow.py \
	  $(ARGS)

soak: $(TEST)/stamp
	$(TEST)/bin/python -m umbel.tests.soak_rounds
	TMPDIR=$(MEMORY) $(TEST)/bin/python -m umbel.tests.soak_fuzz

chaos: $(TEST)/stamp
	$(TEST)/bin/python -m umbel.tests.chaos_rounds
	$(TEST)/bin/python -m umbel.tests.chaos_up

large: $(TEST)/stamp
	$(TEST)/bin/python -m pytest -m "slow or not slow" tests/test_core_memory.py
	$(TEST)/bin/python -m umbel.tests.large_model
	$(TEST)/bin/python -m umbel.tests.large_secure
	$(TEST)/bin/python -m umbel.tests.large_rows

bench: $(TEST)/stamp
	$(TEST)/bin/umbel bench secure --clients 100 --params 1000000 --drop 0.1 --json
	$(TEST)/bin/umbel bench footprint --json
	$(TEST)/bin/umbel bench round --json
	$(TEST)/bin/umbel bench enrol --json
	$(TEST)/bin/umbel bench fold --json
	$(TEST)/bin/umbel bench ingest --json
	$(TEST)/bin/umbel bench unmask --json
	$(TEST)/bin/umbel bench robust --json
	$(TEST)/bin/umbel bench step --json
	$(TEST)/bin/umbel bench clock --json
	$(TEST)/bin/umbel bench plan --json

# grpcio-tools 1.71.2 writes gencode 5.29, the oldest that every protobuf we allow can import. It
# needs pkg_resources, which setuptools dropped in 80.
proto: $(PROTO)/stamp
	$(PROTO)/bin/python -m grpc_tools.protoc -Iprotocol --python_out=protocol --pyi_out=protocol \
	  protocol/messages.proto

$(PROTO)/stamp: Makefile
	@python=$$($(FIND_PYTHON)) && rm -rf $(@D) && "$$python" -m venv $(@D)
	$(@D)/bin/python -m pip install -q grpcio-tools==1.71.2 'setuptools<80'
	@touch $@

$(ENVS)/%/stamp: pyproject.toml constraints.txt
	@echo "umbel: making $(@D), once; this takes minutes where torch is part of it"
	@python=$$($(FIND_PYTHON)) && rm -rf $(@D) && "$$python" -m venv $(@D)
	$(@D)/bin/python -m pip install -q -c constraints.txt -e '.$(EXTRAS_$*)'
	@touch $@

clean:
	rm -rf $(ENVS) build dist umbel.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
