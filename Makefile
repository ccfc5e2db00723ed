# Everything goes through stamp files in .venv and build, so that a second run does only what changed.
# `make help` lists the targets.

PYTHON ?= python3
# PyPI's file for this version; set TORCH to a wheel or another index's version to use that.
TORCH ?= torch==2.13.0
# Of nproc, which would print OMP_NUM_THREADS where that is set.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=
# --share 0.02 for a short run
CONVERGENCE_ARGS ?=
MASKS_ARGS ?=
FEDERATED_ARGS ?=
# 1: make setup installs the versions of requirements/dev.txt, whose hashes pip compares
LOCKED ?=
# Of make sweep and make fuzz, all targets together.
SECONDS ?= 600
CLANG ?= clang++
# Of make test-sanitized: address or thread; both.
KIND ?=

VENV := .venv
BIN := $(VENV)/bin
NATIVE := exporter/zoexport/_native
AARCH64 := build/aarch64
MACOS := build/macos
MACHINE := $(shell uname -m)
# As old as the dependencies' own wheels (CONTRIBUTING.md).
MANYLINUX := manylinux_2_28
# Files have the time of the newest commit.
WHEEL = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel . --quiet --disable-pip-version-check \
  --no-deps --no-build-isolation --wheel-dir dist
LOCK = $(BIN)/uv pip compile pyproject.toml --quiet --universal --generate-hashes --no-annotate \
  --custom-compile-command "make lock"
# What the torch of the package registry asks for beside itself, and others do not.
OF_TORCH := torch triton cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc \
  cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
# Installs the checkout with extras. Its path alone stays of what scikit-build-core writes: a finder that it adds would come
# before PYTHONPATH, and the tests of another work tree would run this one's package.
define checkout
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(2) --editable ".[$(1)]"
	@echo "$(abspath exporter)" | tee $(VENV)/lib/python3*/site-packages/_editable_skbc_zoexport.pth >/dev/null
	@rm -f $(VENV)/lib/python3*/site-packages/_editable_skbc_zoexport.py
endef
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS)
# Vulkan's compiler and header in the folders that CMake searches. The stamps of configuration contain this list.
split = $(subst :, ,$(1))
PREFIXES := $(call split,$(CMAKE_PREFIX_PATH)) /usr/local /usr /opt/homebrew
FOUND := $(sort $(realpath $(addsuffix /include/vulkan/vulkan.h,$(PREFIXES)) \
  $(foreach folder,$(call split,$(PATH)) $(addsuffix /bin,$(PREFIXES)),$(folder)/glslangValidator $(folder)/glslang)))
SEARCH_AGAIN := -U GLSLANG_VALIDATOR -U VULKAN_INCLUDE
SOURCES := $(shell find runtime_ops graphs/golden graphs/schema tests/cpp cmake -type f 2>/dev/null) $(wildcard CMakeLists.txt)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test-tiny programs device-runner site site-pictures demo bench bench-mebp bench-models bench-architectures bench-curves bench-generate bench-mlx bench-packing report-convergence report-masks report-learning \
  wheel wheel-aarch64 wheel-macos release sdist lock sbom report-activations report-rounded-inputs report-directions report-quzo report-federated test test-all test-python test-rest test-sweep sweep test-unit \
  test-aarch64 test-sanitized test-sanitized-session fuzz test-federation test-cpp test-kotlin test-swift lint check format clean tools-changed

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: build/.installed ## Install everything into .venv and build the C++ runtime
	@echo "Ready: $(BIN)/zoexport"

programs: setup build/.programs

site: setup ## Build the site into build/site; every link and name in it must lead somewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

site-pictures: site ## Renew docs/images/site-*.png from the built site, in Chromium
	$(BIN)/python docs/site/screenshots.py

demo: setup ## Fine-tune SmolLM2-135M on 60 mails, on this machine, and draw what changed
	$(BIN)/zoexport finetune smollm2-135m --data examples/own_messages/mails.jsonl -o demo
	$(BIN)/python examples/own_messages/picture.py demo/loss.png
	@echo "The pictures are demo/loss.png and demo/loss-dark.png."

bench: programs ## Measure SmolLM2-135M here and renew docs/results/performance.md (an hour, idle cores)
	$(BIN)/zoexport bench smollm2-135m --grid full -o build/research/performance/full --force
	$(BIN)/python -m research.performance.page docs/results/performance.md build/research/performance/full
	$(BIN)/zoexport bench smollm2-135m --methods prge --weights int4,fp32 --max-length 64 --batch-size 1 --num-queries 1 --labels all,last --eager \
	  --rounds 7 -o build/research/performance/prge --force
	$(BIN)/python -m research.performance.page docs/results/performance.md build/research/performance/prge bench-prge
	$(BIN)/python -m research.performance.roofline docs/results/performance.md build/research/performance/prge

bench-mebp: programs ## Measure MeBP on SmolLM2-135M here and renew docs/results/performance.md (idle cores)
	$(BIN)/zoexport bench smollm2-135m --grid mebp -o build/research/performance/mebp --force
	$(BIN)/python -m research.performance.page docs/results/performance.md build/research/performance/mebp bench-mebp
	$(BIN)/python -m research.performance.kernels docs/results/performance.md build/research/performance/mebp
	$(BIN)/python -m research.performance.roofline docs/results/performance.md build/research/performance/mebp

bench-models: setup ## Measure MeBP's five models here, of random weights, and renew docs/results/performance.md (two hours; goes on)
	$(BIN)/python -m research.performance.models docs/results/performance.md

bench-architectures: setup ## Measure MeBP on newer architectures here, of random weights, and renew docs/results/performance.md (two hours; goes on)
	$(BIN)/python -m research.performance.architectures docs/results/performance.md

bench-curves: setup ## Measure a step against tokens, layers, rank and queries and renew docs/results/performance.md (an hour; goes on)
	$(BIN)/python -m research.performance.curves docs/results/performance.md

bench-generate: setup ## Measure generation beside llama.cpp's and renew docs/results/generation.md (fifteen minutes)
	$(BIN)/python -m research.generation.measure docs/results/generation.md

bench-mlx: setup ## Measure MLX's memory in a MeBP step of SmolLM2-135M and renew docs/results/targets.md (ten minutes)
	$(BIN)/python -m research.mlx.measure docs/results/targets.md

report-convergence: setup ## Train with MeBP, P-RGE and MeZO on plain text and renew docs/results/learning.md (an hour)
	$(BIN)/python -m research.convergence.measure docs/results/learning.md $(CONVERGENCE_ARGS)

report-masks: setup ## Measure what masks cover and train by them, and renew docs/results/learning.md (half a day)
	$(BIN)/python -m research.masks.measure docs/results/learning.md $(MASKS_ARGS)

report-learning: setup ## Train SensZOQ, P-RGE, QuZO and FZOO on sentences; renew docs/results/learning.md (a day; goes on)
	$(BIN)/zoexport sensitivity smollm2-135m -o build/smollm2.mask --force
	$(BIN)/python -m research.learning.measure senszoq docs/results/learning.md --mask build/smollm2.mask
	$(BIN)/python -m research.learning.measure quzo-int8 docs/results/learning.md
	$(BIN)/python -m research.learning.measure quzo-int4 docs/results/learning.md
	$(BIN)/python -m research.learning.measure quzo-adapters docs/results/learning.md
	$(BIN)/python -m research.learning.measure fzoo docs/results/learning.md
	$(BIN)/python -m research.learning.measure queries docs/results/learning.md
	$(BIN)/python -m research.learning.measure split docs/results/learning.md
	$(BIN)/python -m research.learning.measure adam docs/results/learning.md
	$(BIN)/python -m research.learning.measure directions docs/results/learning.md

bench-packing: setup ## Measure rows and time a token with and without packing and renew docs/results/numbers.md (ten minutes)
	$(BIN)/python -m research.packing.measure docs/results/numbers.md

report-activations: setup ## Measure what rounding SmolLM2's activations costs and renew docs/results/numbers.md (five minutes)
	$(BIN)/python -m research.activations.measure docs/results/numbers.md

report-rounded-inputs: setup ## Measure what activations=int8 changes of losses and of their differences, renew docs/results/numbers.md (five minutes)
	$(BIN)/python -m research.activations.dynamic docs/results/numbers.md

report-directions: setup ## Measure which share of gradients A's directions have and renew docs/results/learning.md (ten minutes)
	$(BIN)/python -m research.directions.measure docs/results/learning.md

report-quzo: setup ## Measure QuZO's gradient estimators on a small block and renew docs/results/learning.md (three minutes)
	$(BIN)/python -m research.quzo.measure docs/results/learning.md

report-federated: setup ## Run federated algorithms at equal operations and renew docs/results/federation.md (hours)
	$(BIN)/python -m research.federated.measure docs/results/federation.md $(FEDERATED_ARGS)

# Two tiers. The second is what make test leaves out: the real model in full, kills, federations, 64-bit ARM, Swift.
test: ## Run the tests: C++, Python and Kotlin, every method on some target (25 minutes)
	.ci/install-tools
	$(MAKE) test-cpp test-python

test-tiny: programs ## Take a two-layer model from compile to generate (under a minute)
	$(PARALLEL) tests/tiny $(PYTEST_ARGS)

test-all: ## Run all tests, and hundreds of random models on every target (hours)
	.ci/install-tools all
	$(MAKE) test-cpp test-python test-rest test-sweep

test-python: programs
	$(PARALLEL) --dist worksteal -m "not slow and not sweep and not aarch64" $(PYTEST_ARGS)

# Tests of one file share what they make, so files are shared out whole; tests/support/order.py has their order. Those of aarch64
# build for it when they begin. UNTIL=seconds since 1970: no test begins after that, and six minutes later none runs.
test-rest: programs
	$(PARALLEL) --dist loadfile --no-loadscope-reorder --newest-first $(if $(UNTIL),--until $(UNTIL)) \
	  -m "(slow or aarch64) and not sweep" $(PYTEST_ARGS)

test-newest: programs ## Train beside the newest packages that pyproject.toml allows (under a minute)
	$(BIN)/python -m pytest tests/slow/test_newest_packages.py $(PYTEST_ARGS)

test-sweep: programs
	$(PARALLEL) --dist worksteal -m sweep tests/sweep $(PYTEST_ARGS)

sweep: setup ## Try random models on every target for SECONDS (600); failures are shrunk and can be replayed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.sweep.run --seconds $(SECONDS)

test-unit: programs ## Run the quick Python tests only
	$(PARALLEL) --dist worksteal -m "not slow and not parity and not network and not aarch64 and not sweep" $(PYTEST_ARGS)

test-aarch64: programs ## Build for 64-bit ARM and run that under qemu
	$(BIN)/python -m pytest -m aarch64 tests/aarch64 $(PYTEST_ARGS)

device-runner: $(AARCH64)/.configured ## Build the runner for phones with 64-bit ARM (needs g++-aarch64-linux-gnu)
	$(BIN)/cmake --build $(AARCH64)/native --parallel $(JOBS) --target zoexport-runner
	@echo "Ready: $(BIN)/zoexport device runner"

test-sanitized: setup ## Run the C++ tests under sanitizers: KIND=address (and undefined behaviour), thread, or both
	$(BIN)/python -m pytest tests/slow/test_sanitized_cpp.py $(if $(KIND),-k $(KIND)) $(PYTEST_ARGS)

# The slow test builds what it needs; then the quick tests of the session, whose own processes are watched too.
test-sanitized-session: programs ## Run the session from Python under address and undefined-behaviour sanitizers
	$(BIN)/python -m pytest tests/slow/test_sanitized_session.py $(PYTEST_ARGS)
	LD_PRELOAD="$$($(or $(CXX),g++) -print-file-name=libasan.so) $$($(or $(CXX),g++) -print-file-name=libstdc++.so)" \
	  PYTHONMALLOC=malloc OMP_NUM_THREADS=1 \
	  ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 ZOEXPORT_NATIVE_DIR="$(abspath build/address/runtime_ops)" \
	  $(BIN)/python -m pytest tests/unit/session $(PYTEST_ARGS)

fuzz: setup $(VENV)/.fuzz ## Run the fuzz targets for SECONDS (600) of CPU time together; needs clang (CLANG=clang++-14) and its libFuzzer
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Release -DZOEXPORT_FUZZ=ON \
	  -DCMAKE_CXX_COMPILER=$(CLANG) -DCMAKE_C_COMPILER=$(subst clang++,clang,$(CLANG)) \
	  -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" -DPython3_EXECUTABLE="$(abspath $(BIN)/python)"
	$(BIN)/cmake --build build/fuzz --parallel $(JOBS) --target fuzz
	$(BIN)/python -m tests.fuzz.run --build build/fuzz --seconds $(SECONDS) --jobs $(JOBS)

test-federation: programs ## Run Flower's engine and real processes only (needs openssl and ssh-keygen)
	$(BIN)/python -m pytest -m federation tests/slow $(PYTEST_ARGS)

test-cpp: programs ## Run the C++ tests only
	$(BIN)/ctest --test-dir build --parallel $(JOBS) --output-on-failure --no-tests=error

test-kotlin: programs ## Run the Kotlin host's tests only (needs a JDK and npm)
	$(BIN)/python -m pytest tests/kotlin $(PYTEST_ARGS)

wheel: setup build/glibc-$(MACHINE)/.written ## Build dist/*.whl of the objects of make setup, and have auditwheel look at it
	$(WHEEL) --config-settings build-dir=build --config-settings wheel.tags=py3-none-$(MANYLINUX)_$(MACHINE) \
	  --config-settings cmake.define.ZOEXPORT_GLIBC="$(abspath build/glibc-$(MACHINE))"
	$(BIN)/auditwheel show dist/zoexport-*-py3-none-$(MANYLINUX)_$(MACHINE).whl

wheel-aarch64: setup $(AARCH64)/.built build/glibc-aarch64/.written ## The same for 64-bit ARM, of the objects of make test-aarch64
	$(WHEEL) --config-settings build-dir=$(AARCH64)/native --config-settings wheel.tags=py3-none-$(MANYLINUX)_aarch64 \
	  --config-settings cmake.define.ZOEXPORT_GLIBC="$(abspath build/glibc-aarch64)"

wheel-macos: $(MACOS)/.built ## The same for Apple silicon, compiled here by Zig's Clang and not run
	$(WHEEL) --config-settings build-dir=$(MACOS)/native --config-settings wheel.tags=py3-none-macosx_14_0_arm64 \
	  --config-settings cmake.define.CMAKE_TOOLCHAIN_FILE="$(abspath cmake/arm64-macos.cmake)"
	$(BIN)/python cmake/check_macos_wheel.py dist/zoexport-*macosx*.whl

sdist: $(VENV)/.packages ## Build dist/*.tar.gz
	$(BIN)/python -c "from scikit_build_core.build import build_sdist; print(build_sdist('dist'))"

# torch is the one that TORCH names.
lock: $(VENV)/.release ## Renew requirements/: versions and hashes of what make setup LOCKED=1 installs, and of a wheel's packages
	$(LOCK) --python-version 3.11 --extra dev $(addprefix --no-emit-package ,$(OF_TORCH)) --output-file requirements/dev.txt
	$(LOCK) --python-version 3.11 --output-file requirements/wheel.txt

# The C and C++ that is compiled in comes in Python packages too.
sbom: $(VENV)/.packages $(VENV)/.release ## Write dist/zoexport.cdx.json: what a wheel holds and asks for, as CycloneDX
	mkdir -p build dist
	sed "s/^dynamic = .*/version = \"$$($(BIN)/python -c 'import zoexport; print(zoexport.__version__)')\"/" pyproject.toml >build/pyproject.toml
	{ cat requirements/wheel.txt cmake/monocypher.txt cmake/pcre2.txt; $(BIN)/pip freeze | grep nlohmann-json; } | \
	  $(BIN)/cyclonedx-py requirements --output-reproducible --pyproject build/pyproject.toml --mc-type library \
	  --output-file dist/zoexport.cdx.json -

# A clone has what is committed and nothing else.
release: ## Build and check all files of a release in a clean clone of HEAD, and copy them to dist/ (an hour)
	@test -z "$$(git status --porcelain)" || { echo "error: this checkout has changes. Commit them; a release is a commit." >&2; exit 1; }
	rm -rf build/release dist
	git clone --quiet . build/release
	$(MAKE) -C build/release dist/SHA256SUMS
	cp -r build/release/dist .

# The tests build the wheels once more, install one without a compiler, and train with it; the bytes are the same.
dist/SHA256SUMS: wheel wheel-aarch64 wheel-macos sdist sbom device-runner
	$(BIN)/python -m pytest tests/slow/test_wheel.py tests/aarch64/test_wheel.py $(PYTEST_ARGS)
	$(BIN)/zoexport device runner -o $(AARCH64)/runner --force
	tar -C $(AARCH64) --sort=name --owner=0 --group=0 --mtime=@$$(git log -1 --format=%ct) -czf dist/zoexport-runner-aarch64.tar.gz runner
	awk '/^## /{found = $$2 == version} found' version="$$($(BIN)/python -c 'import zoexport; print(zoexport.__version__)')" CHANGELOG.md >dist/NOTES.md
	cd dist && sha256sum * >SHA256SUMS

test-swift: programs ## Run the Swift host's tests only (needs Swift, or .ci/install-swift)
	$(BIN)/python -m pytest tests/swift $(PYTEST_ARGS)

lint: $(VENV)/.packages ## Check format of Python and C++, lint and types of Python
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy

check: lint build/.configured ## Check as lint does, and C++ by clang-tidy
	$(BIN)/run-clang-tidy.py -clang-tidy-binary $(BIN)/clang-tidy -p build -quiet -hide-progress -j $(JOBS) /runtime_ops/

format: $(VENV)/.packages ## Format Python and C++, and apply lint's safe fixes to Python
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

clean: ## Remove what setup built; downloaded models stay in the cache
	rm -rf $(VENV) build $(NATIVE) .mypy_cache .pytest_cache .ruff_cache
	find exporter research tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) was not found. \
	Install Python 3.11 or newer, or run make with PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is \
	$$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed. Run make with PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot create \
	virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@command -v $(or $(CXX),g++) >/dev/null || { echo "error: no C++ compiler was found. \
	On Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# torch goes first and alone: with it installed, pip keeps this build when the other packages ask for a range.
$(VENV)/.torch: $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@touch $@

$(VENV)/.packages: $(VENV)/.torch pyproject.toml
	$(if $(LOCKED),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  -r requirements/dev.txt)
	$(call checkout,dev,$(if $(LOCKED),--no-deps))
	@touch $@

$(VENV)/.fuzz: $(VENV)/.packages
	$(call checkout,fuzz)
	@touch $@

$(VENV)/.release: $(VENV)/.packages
	$(call checkout,release)
	@touch $@

build/glibc-%/.written: $(VENV)/.release cmake/old_glibc.py
	$(BIN)/python cmake/old_glibc.py $(@D) $* $(subst _,.,$(MANYLINUX:manylinux_%=%))
	@touch $@

ifneq ($(FOUND),$(shell cat build/.configured 2>/dev/null))
build/.configured: tools-changed
endif
ifneq ($(FOUND),$(shell cat $(AARCH64)/.configured 2>/dev/null))
$(AARCH64)/.configured: tools-changed
endif

build/.configured: $(VENV)/.packages CMakeLists.txt
	$(BIN)/cmake -S . -B build -G Ninja $(SEARCH_AGAIN) -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" \
	  -DPython3_EXECUTABLE="$(abspath $(BIN)/python)" \
	  -DCMAKE_INSTALL_PREFIX="$(abspath $(NATIVE))"
	@echo "$(FOUND)" >$@

build/.installed: build/.configured $(SOURCES)
	$(BIN)/cmake --build build --parallel $(JOBS) --target runtime
	$(BIN)/cmake --install build --prefix "$(abspath $(NATIVE))"
	@touch $@

# Tests, programs that fuzz and measure, and the library of an app, which tests load.
build/.programs: build/.installed
	$(BIN)/cmake --build build --parallel $(JOBS)
	$(BIN)/cmake --install build --prefix "$(abspath $(NATIVE))" --component tests
	@touch $@

# The same release as the one in .venv, for another machine: its libraries and headers, no Python, so that of which Python it
# is for is all the same.
$(AARCH64)/.executorch: PLATFORM := manylinux_2_28_aarch64
$(MACOS)/.executorch: PLATFORM := macosx_14_0_arm64
build/%/.executorch: $(VENV)/.packages cmake/executorch.txt
	rm -rf $(@D)/wheel $(@D)/package
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	  --python-version 3.12 --implementation cp --platform $(PLATFORM) --dest $(@D)/wheel \
	  --require-hashes -r cmake/executorch.txt
	$(BIN)/python -m zipfile -e $(@D)/wheel/*.whl $(@D)/package
	rm -rf $(@D)/wheel
	@touch $@

$(MACOS)/.built: $(MACOS)/.executorch $(VENV)/.release CMakeLists.txt cmake/arm64-macos.cmake $(SOURCES)
	$(BIN)/cmake -S . -B $(MACOS)/native -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_TOOLCHAIN_FILE="$(abspath cmake/arm64-macos.cmake)" \
	  -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" \
	  -DPython3_EXECUTABLE="$(abspath $(BIN)/python)" \
	  -DEXECUTORCH_PREFIX="$(abspath $(MACOS)/package/executorch)"
	$(BIN)/cmake --build $(MACOS)/native --parallel $(JOBS) --target wheel
	@touch $@

$(AARCH64)/.configured: $(AARCH64)/.executorch CMakeLists.txt cmake/aarch64-linux-gnu.cmake
	@command -v aarch64-linux-gnu-g++ >/dev/null || { echo "error: no C++ compiler for 64-bit ARM was found. \
	On Debian and Ubuntu: apt-get install g++-aarch64-linux-gnu" >&2; exit 1; }
	$(BIN)/cmake -S . -B $(AARCH64)/native -G Ninja $(SEARCH_AGAIN) -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_TOOLCHAIN_FILE="$(abspath cmake/aarch64-linux-gnu.cmake)" \
	  -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN)/ninja)" \
	  -DPython3_EXECUTABLE="$(abspath $(BIN)/python)" \
	  -DEXECUTORCH_PREFIX="$(abspath $(AARCH64)/package/executorch)"
	@echo "$(FOUND)" >$@

$(AARCH64)/.built: $(AARCH64)/.configured $(SOURCES)
	$(BIN)/cmake --build $(AARCH64)/native --parallel $(JOBS)
	@touch $@
