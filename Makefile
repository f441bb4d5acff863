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
