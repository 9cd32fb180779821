# SPDX-License-Identifier: Apache-2.0
# The commands of this repository; `make` alone lists them. Each installs what it lacks, builds what
# changed and does no work twice. CMakePresets.json says how each build folder is configured.
JOBS ?= $(shell nproc)
RUNS ?= 20000
PREFIX ?= /usr/local
BUILD := cmake --build --preset
TEST := ctest --preset

.DEFAULT_GOAL := help
.PHONY: help setup build test compare bench sanitize asan tsan fuzz lint kernels docs install \
  wheel clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the Debian packages that building and testing need
	@tools/setup.sh build

build: build/build.ninja ## build the library and the command into build/
	@$(BUILD) release -j $(JOBS)

test: build ## build, then run every test
	@tools/setup.sh browser
	@$(TEST) release -j $(JOBS)

compare: build ## train, attack, corrupt and time five mechanisms (PLAN='--budget 1h' for another)
	@build/foci compare $(PLAN)

bench: build ## measure every speed line on this machine (ONLY=REGEX for some of them)
	@python3 bench/suite.py --only '$(ONLY)'
	@$(BUILD) release --target foci_nn_cost > /dev/null && python3 bench/nn.py || echo "without torch"
	@python3 tools/performance.py > docs/performance.md

sanitize: asan tsan ## tests under ASan, UBSan, TSan (make asan, make tsan: one of them)

asan tsan: %: build-%/build.ninja
	@$(BUILD) $* -j $(JOBS)
	@$(TEST) $* -j $(JOBS)

fuzz: setup ## throw RUNS inputs (20000) at each parser
	@tools/setup.sh fuzz
	@cmake --preset fuzz -DFOCI_FUZZ_RUNS=$(RUNS) > /dev/null
	@$(BUILD) fuzz -j $(JOBS)
	@$(TEST) fuzz -j $(JOBS)
	@awk '/ Testing: / {name = $$3} /executed_units/ {print name ": " $$2 " inputs, no finding"}' \
	  build-fuzz/Testing/Temporary/LastTest.log

lint: build/build.ninja ## check format (clang-format) and code (clang-tidy; DEEP=1: its analyser)
	@tools/setup.sh lint
	@DEEP=$(DEEP) tools/lint.sh build $(JOBS)

kernels: SHELL := bash
kernels: build-cuda/build.ninja ## compile all that runs on a GPU (nvcc; ARCHS=90a-real for one)
	@set -o pipefail; $(BUILD) cuda -j $(JOBS) --target kernels | tee build-cuda/build.log
	@python3 tools/ptxas.py build-cuda/build.log > build-cuda/ptxas.json
	@$(TEST) cuda -R '^metric_device_test$$'

docs: build ## make pictures, the README's table and the page of speeds again
	@tools/docs.sh build

install: build ## install into PREFIX (/usr/local)
	@cmake --install build --prefix $(PREFIX)

wheel: setup ## make a Python wheel for the torch of PYTHON, in build/
	@tools/wheel.sh '$(PYTHON)' $(JOBS)

clean: ## remove every build folder
	@rm -rf build $(foreach p,dev asan tsan core cuda fuzz,build-$(p))

build/build.ninja: | setup
	@cmake --preset release
build-cuda/build.ninja: | setup
	@command -v nvcc > /dev/null || { echo "make kernels: no nvcc on the PATH" >&2; exit 1; }
	@cmake --preset cuda $(if $(ARCHS),-DCMAKE_CUDA_ARCHITECTURES='$(ARCHS)')
build-%/build.ninja: | setup
	@cmake --preset $*
