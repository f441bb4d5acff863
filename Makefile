# Everything here needs Go and nothing else; what the tests need beyond it they bring or skip visibly.

GO ?= go
TIMEOUT ?= 20m

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/relay, static
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/relay ./cmd/relay

.PHONY: test
test: lint race ## run everything: lint, then all tests with the race detector

.PHONY: test-short
test-short: ## run the tests that are quick, without the race detector
	$(GO) test -short -shuffle=on -timeout 5m -p 2 ./...

.PHONY: race
race: ## run all tests with the race detector (needs a C compiler)
	$(GO) test -race -shuffle=on -timeout $(TIMEOUT) -p 2 ./...

# The oldest and the newest supported; the servers start by themselves, each its own.
.PHONY: ledger-majors
ledger-majors: ## test the ledger on PostgreSQL 14 and 18, side by side
	@for major in 14 18; do \
		RELAY_TEST_POSTGRES_MAJOR=$$major $(GO) test -short -p 1 -timeout 10m ./ledger ./ledger/sqltest & pids="$$pids $$!"; \
	done; failed=0; for pid in $$pids; do wait $$pid || failed=1; done; exit $$failed

.PHONY: test-all-versions
test-all-versions: ## run every test that needs PostgreSQL on each of 14 to 18, without the race detector
	@for major in 14 15 16 17 18; do \
		echo "PostgreSQL $$major"; \
		RELAY_TEST_POSTGRES_MAJOR=$$major $(GO) test -timeout $(TIMEOUT) -p 2 ./cdc ./cmd/... ./internal/... ./ledger/... ./migrations ./outbox || exit 1; \
	done

.PHONY: test-newest
test-newest: ## run the tests of what reads the database on the newest PostgreSQL too
	RELAY_TEST_POSTGRES_MAJOR=18 $(GO) test -timeout $(TIMEOUT) -p 2 ./cdc ./internal/relaystate

.PHONY: soak
soak: ## run what takes an hour: a transaction of 5 M rows, a long outage, hundreds of kills
	RELAY_TEST_SOAK=1 $(GO) test -v -timeout 3h -run 'TestSoak|TestE2E_Kill|TestE2E_Resume' ./cmd/relay

.PHONY: lint
lint: ## check formatting, go vet, staticcheck
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

.PHONY: fmt
fmt: ## format the Go files
	gofmt -w .

.PHONY: examples
examples: ## fetch the database drivers of the examples in Node and Python, at their pinned versions
	npm ci --prefix examples/node --no-audit --no-fund --no-update-notifier
	python3 -m venv --clear examples/python/.venv
	examples/python/.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r examples/python/requirements.txt

.PHONY: demo
demo: build ## show a relay at work, with nothing installed
	bin/relay demo

# Figures of one machine: quote them with it. SYSTEMS, ROWS, REPEATS and K say what is measured.
SYSTEMS ?= floor-receive,floor-pipe,relay,debezium
ROWS ?= 1000000
REPEATS ?= 3
K ?= 10

.PHONY: bench
bench: ## measure the relay side by side with others (needs Java, Maven once; minutes)
	$(GO) run ./bench drain --systems $(SYSTEMS) --rows $(ROWS) --repeats $(REPEATS) --k $(K)
	$(GO) run ./bench latency
	$(GO) run ./bench memory
	$(GO) run ./bench write
	$(GO) run ./bench ledger

# What the hot paths allocate, which does not hang on the clock. The counts are fixed so that what is allocated once
# is spread over as many operations each time.
HOT_PATHS = $(GO) test -run '^$$' -bench 'Benchmark(Accept|Chunk)$$' -benchmem -benchtime 2000000x ./sink ./cdc && \
	$(GO) test -run '^$$' -bench 'BenchmarkSeal$$' -benchmem -benchtime 2000x ./sink && \
	$(GO) test -run '^$$' -bench 'BenchmarkWrite$$/events' -benchmem -benchtime 500x ./outbox

.PHONY: bench-check
bench-check: ## compare what the hot paths allocate with bench/baseline.txt
	{ $(HOT_PATHS); } | $(GO) run ./bench check

.PHONY: bench-baseline
bench-baseline: ## store what the hot paths allocate
	{ $(HOT_PATHS); } | $(GO) run ./bench check -update
