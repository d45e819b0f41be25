# Drawbridge. `make run` shows it, `make check` judges the tree, `make test` proves it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tools of the gates are installed here once, in versions that we chose.
TOOLS ?= $(CURDIR)/.cache/tools
DENY := 0.20.2
MACHETE := 0.9.2
RUST_MIN := 1.94

# A release build, compiled with the profile that was taken with this compiler (docs/adr/0012).
RELEASE := RUSTFLAGS="$$(deploy/profile/flags.sh)" cargo build --release --locked

.PHONY: help
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Where cargo builds.
BUILT := $(or $(CARGO_TARGET_DIR),target)

# Where `make install` puts the program: the directory that rustup has put on the PATH.
BIN ?= $(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.PHONY: install
install: preconditions ## Builds the gateway, tuned, and puts it into ~/.cargo/bin, or BIN
	$(RELEASE)
	mkdir -p $(BIN)
	install -m 755 $(BUILT)/release/drawbridge $(BIN)/drawbridge

# Where `make run` has its program: built with the profile `quick`, with the allocator of the C library, and nowhere installed.
QUICK := $(BUILT)/quick/drawbridge

.PHONY: run
run: preconditions ## Builds the gateway quickly, and runs it with a demonstration upstream
	@test -e $(QUICK) \
	  || echo 'Compiling the gateway and what it depends on: four to five minutes on two cores, the first time.'
	RUSTFLAGS="$${RUSTFLAGS:-} --cfg system_allocator" cargo build --profile quick --locked --bin drawbridge
	@printf '%s\n' '' \
	  'Drawbridge starts on http://127.0.0.1:8080/mcp (config/quickstart.toml). Ctrl-C ends it.' '' \
	  '  Claude Code     claude mcp add --transport http drawbridge http://127.0.0.1:8080/mcp' \
	  '  MCP Inspector   npx @modelcontextprotocol/inspector' \
	  '                  transport "Streamable HTTP", URL http://127.0.0.1:8080/mcp' ''
	@exec $(QUICK) serve --config config/quickstart.toml

.PHONY: check
check: preconditions $(TOOLS)/deny-$(DENY) $(TOOLS)/machete-$(MACHETE) ## Format, lints, docs, dependencies, layering, generated files
	cargo fmt --all --check
	cargo clippy --quiet --locked --all-targets --features stubs -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --no-deps --document-private-items
	$(TOOLS)/bin/cargo-deny --locked check --hide-inclusion-graph bans licenses sources
	$(TOOLS)/bin/cargo-machete --skip-target-dir .
	cargo test --quiet --locked --features stubs --no-run
	cargo test --quiet --locked --features stubs --test layering
	cargo test --quiet --locked --features stubs --lib config::shipped
	CUSTOM_LIBFUZZER_PATH=/unlinked cargo check --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir target

.PHONY: test
test: preconditions ## Installs what is missing, then gates and all tests, with counts (35 minutes cold at most)
	tests/setup/test.sh

.PHONY: test-keycloak
test-keycloak: preconditions ## Takes nine real clients through a real Keycloak (Java; fetched; Debian installs what is missing)
	python3 tests/setup/install.py
	cargo test --quiet --locked --features stubs --no-run --test layering
	tests/keycloak/run.py

FUZZ_TARGETS := envelope sse headers seal
FUZZ_SECONDS ?= 300
FUZZ := 0.13.2

.PHONY: fuzz
fuzz: preconditions $(TOOLS)/fuzz-$(FUZZ) ## Fuzzes every parser of outside bytes, FUZZ_SECONDS each
	for target in $(FUZZ_TARGETS); do mkdir -p .cache/fuzz-corpus/"$$target"; \
	  RUSTC_BOOTSTRAP=1 PATH="$(TOOLS)/bin:$$PATH" cargo fuzz run --sanitizer none --target-dir .cache/fuzz "$$target" \
	    .cache/fuzz-corpus/"$$target" -- -dict=fuzz/json.dict -max_total_time=$(FUZZ_SECONDS) -max_len=4096; \
	done

.PHONY: reference
reference: ## Writes config/gateway.reference.toml anew
	cargo run --quiet --locked -- check --reference > config/gateway.reference.toml.new
	mv config/gateway.reference.toml.new config/gateway.reference.toml

MATRIX := DRAWBRIDGE_CELLS= DRAWBRIDGE_FEATURES= cargo test --locked --features stubs --test it -- --include-ignored --exact matrix

.PHONY: compatibility
compatibility: preconditions ## Tries every pairing of clients and upstreams; writes docs/compatibility.md
	$(MATRIX)::every_cell_does_what_the_rules_say
	DRAWBRIDGE_WRITE=1 $(MATRIX)::the_page_on_compatibility_says_what_the_rules_say

# Built without optimisation and without debug information: they run for a second and would compile for minutes.
TOOL := CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --no-default-features --root $(TOOLS)

$(TOOLS)/deny-$(DENY):
	$(TOOL) cargo-deny@$(DENY)
	touch $@

$(TOOLS)/machete-$(MACHETE):
	$(TOOL) cargo-machete@$(MACHETE)
	touch $@

$(TOOLS)/fuzz-$(FUZZ):
	$(TOOL) cargo-fuzz@$(FUZZ)
	touch $@

# Installs the package $(2) of Debian where the program $(1) is missing. A fresh Debian has no lists of packages before
# `apt-get update`; an update that fails for another source does not matter where the installation succeeds.
needs = command -v $(1) > /dev/null || { apt-get update -q; apt-get install -q -y --no-install-recommends $(2); } \
  || { echo '$(1) is needed: install $(2) from your distribution'; exit 1; }

DRILL := target/release/drill

# The gateway as `make install` and the image have it, and what drives it: in `target` whatever CARGO_TARGET_DIR says, where
# the drill, deploy/profile/take.sh and tests/setup/soak.py look for them.
.PHONY: drill
drill: preconditions
	$(RELEASE) --target-dir target
	$(RELEASE) --target-dir target --features stubs --bin drill --bin stub-upstream --bin bare-proxy

# The two programs that differ with the profile, compiled without it.
UNTUNED := target/untuned
.PHONY: untuned
untuned: preconditions
	cargo build --release --locked --target-dir $(UNTUNED) --features stubs --bin drawbridge --bin bare-proxy

.PHONY: bench
bench: drill untuned redis ## Measures CPU, memory and start-up beside nginx and a bare hyper proxy, and replicas with Redis; writes docs/benchmarks.md
	@$(call needs,nginx,nginx-light)
	@ulimit -n 16384 && $(DRILL) bench --untuned $(UNTUNED)/release --recorded $(RECORDED) \
	  --markdown docs/benchmarks.md --json target/benchmarks.json

.PHONY: redis
redis:
	@$(call needs,redis-server,redis-server)

.PHONY: valgrind
valgrind:
	@$(call needs,valgrind,valgrind)

.PHONY: replicas
replicas: drill redis ## Measures what 20,000 idle sessions on three replicas take, there and in Redis; writes docs/replica-memory.md
	@ulimit -n 16384 && $(DRILL) replicas --markdown docs/replica-memory.md

.PHONY: instructions
instructions: drill redis valgrind ## Counts instructions per reply (valgrind, a few minutes); fails where a row takes 3 % more than is recorded
	$(INSTRUCTIONS)

.PHONY: record-instructions
record-instructions: drill redis valgrind ## Records them anew, after a change that is worth its cost, or a new profile
	$(INSTRUCTIONS) --record

RECORDED := benches/instructions.toml
INSTRUCTIONS = $(DRILL) instructions --recorded $(RECORDED)

.PHONY: profile
profile: drill redis ## Takes the profile anew that release builds are compiled with (after a change of the compiler or of much code)
	deploy/profile/take.sh

.PHONY: soak
soak: drill redis ## The long forms, with closing counts: 1,000 disconnects, 10,000 unanswered questions, 5,000 abandoned stdio sessions, kills, drains, 10,000 calls over broken networks, a hostile caller, 20,000 sessions on three replicas, 10 failures of Redis of each kind, replicas that are killed in turn, all pairings, 50 times the cases of property tests; or PARTS of them
	python3 tests/setup/soak.py $(PARTS)

.PHONY: image image-slim
image: ## Builds the container image with Node and uv, for stdio servers: drawbridge
	docker build --tag drawbridge .
image-slim: ## Builds the container image of the gateway alone: drawbridge:slim
	docker build --target slim --tag drawbridge:slim .

.PHONY: image-check
image-check: preconditions ## Builds both container images and runs each once (Debian, root; no daemon)
	deploy/image-check.sh

.PHONY: preconditions
preconditions:
	@command -v cargo > /dev/null || { echo 'A Rust toolchain is needed ($(RUST_MIN) or later): https://rustup.rs'; exit 1; }
	@have=$$(rustc --version | cut -d ' ' -f 2); \
	  printf '%s\n' '$(RUST_MIN)' "$$have" | sort -V -C \
	  || { echo "Rust $(RUST_MIN) or later is needed, this is $$have: rustup update"; exit 1; }
	@command -v cc > /dev/null || { echo 'A C compiler is needed: apt-get install build-essential, or xcode-select --install'; exit 1; }
