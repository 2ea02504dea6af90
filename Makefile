# `make test` and `make demo` do everything from nothing; `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rustup's programs, for a shell that was open before Rust came.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Elixir warns, and prints no text but Latin 1, where the locale is not UTF-8, as on a bare Debian.
ifneq ($(shell locale charmap 2>/dev/null),UTF-8)
export LC_ALL := C.UTF-8
endif

# Where Cargo's build scripts find LLVM 19 and libclang when no Mix is there to tell them.
ifdef EXLA_CUSTOM_CALL_LLVM_PREFIX
export MLIR_SYS_190_PREFIX := $(EXLA_CUSTOM_CALL_LLVM_PREFIX)
export TABLEGEN_190_PREFIX := $(EXLA_CUSTOM_CALL_LLVM_PREFIX)
export LIBCLANG_PATH ?= $(EXLA_CUSTOM_CALL_LLVM_PREFIX)/lib
endif

.PHONY: help setup build plugin test test-plugins demo soak soak-short memory memory-short fuzz fuzz-short differential differential-short sanitize sanitize-short bench-checking bench-sharding lint ci clean

help: ## Prints this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Installs the missing system packages (Debian, Ubuntu)
	@scripts/setup.sh

build: setup ## Compiles the package, its native code included
	@mix compile

plugin: build ## Fetches XLA's CPU plugin into the user's cache, once
	@[ -n "$${EXLA_CUSTOM_CALL_PJRT_CPU:-}" ] || mix custom_call.install cpu

# The NIF crate's functions exist inside a VM only: Mix's tests are its tests.
test: plugin ## Runs all tests: Cargo's and Mix's, the example's included
	cargo test --workspace --exclude exla_custom_call --locked
	mix test
	cd examples/flash_attention/native && cargo test --locked
	cd examples/flash_attention && mix test

# The path is the last line that the installation prints, after a colon.
test-plugins: test ## Runs Mix's tests on the other build of the plugin too
	@said=$$(mix custom_call.install cpu --build zml); echo "$$said"; \
	EXLA_CUSTOM_CALL_PJRT_CPU=$$(echo "$$said" | sed -n '$$s/^.*: //p') mix test

demo: plugin ## Runs examples/flash_attention
	@cd examples/flash_attention && mix run demo.exs

soak: plugin ## Runs 100,000 programs, compiles 2,000, from Elixir and from Rust, and fails if memory grows (RUNS, COMPILATIONS, GROWTH_MIB)
	@mix run bench/soak.exs --runs $${RUNS:-100000} --compilations $${COMPILATIONS:-2000} --growth-mib $${GROWTH_MIB:-64}
	@SOAK_RUNS=$${RUNS:-100000} SOAK_COMPILATIONS=$${COMPILATIONS:-2000} \
	cargo test --package pjrt_runtime --locked soak -- --ignored --nocapture

soak-short: plugin ## The same for about half a minute
	@mix run bench/soak.exs --runs $${RUNS:-24000} --compilations $${COMPILATIONS:-480} --growth-mib $${GROWTH_MIB:-64}
	@SOAK_RUNS=$${RUNS:-10000} SOAK_COMPILATIONS=$${COMPILATIONS:-100} \
	cargo test --package pjrt_runtime --locked soak -- --ignored --nocapture

memory: build ## Builds 1,000,000 modules that all differ, in fresh contexts and in a shared one, and fails if memory grows (BUILDS, GROWTH_MIB)
	@mix run bench/memory.exs --builds $${BUILDS:-1000000} --growth-mib $${GROWTH_MIB:-32}

memory-short: build ## The same for about a quarter of a minute
	@mix run bench/memory.exs --builds $${BUILDS:-50000} --growth-mib $${GROWTH_MIB:-32}

# SECONDS is Make's here: Bash's own variable of that name counts.
fuzz: plugin ## Gives every way into the package what it should not get (SECONDS, TARGET, SEED), 10 minutes by default
	@mix run --no-start fuzz/fuzz.exs --shrink --seconds $(or $(SECONDS),600) $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED))

fuzz-short: plugin ## The same for about 40 seconds, each time the same inputs
	@mix run --no-start fuzz/fuzz.exs --seconds 40 --seed 1

differential: plugin ## Asks the checker and XLA about 100,000 custom calls and compares the answers (CASES, SEED, ARGS)
	@cargo build --release --locked --package compile_worker --package differential
	@target/release/differential --cases $${CASES:-100000} --seed $${SEED:-1} $${ARGS:-}

differential-short: plugin ## The corpus of known ones, and some 1,500 more, in about a minute
	@cargo build --release --locked --package compile_worker --package differential
	@target/release/differential --corpus native/differential/corpus
	@target/release/differential --cases $${CASES:-1500} --seed $${SEED:-1} --shrink 30 $${ARGS:-}

# valgrind is for these two alone.
sanitize: plugin ## Runs the Rust crates' tests under valgrind, XLA's plugin included
	@scripts/setup.sh valgrind
	@scripts/sanitize.sh

sanitize-short: build ## The same for the crates that need no plugin, in about half a minute
	@scripts/setup.sh valgrind
	@scripts/sanitize.sh --short

bench-checking: setup ## Builds a module with the rules and without, and prints what they cost
	@cargo bench --locked --package stablehlo_custom_call --bench checking

bench-sharding: build plugin ## Runs attention on one device and split over two, and prints the ratio of their times
	@cd examples/flash_attention && mix run bench/scaling.exs

lint: build ## Checks formats, warnings and types, in Rust and Elixir
	@scripts/lint.sh

ci: ## Everything that has to pass before a change lands
	@.ci/run

clean: ## Removes what was built; the plugin stays in the user's cache
	rm -rf _build priv/native target tmp examples/*/_build examples/*/priv/native examples/*/native/target
