# Everything here needs Go and nothing else; what the tests need beyond it they bring or skip visibly.

GO ?= go
TIMEOUT ?= 20m

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

.PHONY: lint
lint: ## check formatting, go vet, staticcheck
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

.PHONY: fmt
fmt: ## format the Go files
	gofmt -w .

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
