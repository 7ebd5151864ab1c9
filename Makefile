# skep's commands. `make help` lists them; README.md names the two to begin with.
#
# The released binary drives io_uring through giouring, which links only with
# -checklinkname=0; the tag iouring builds it in. Plain `go build ./...` and
# `go test ./...` need neither: they use the portable pool of threads.

GO          ?= go
TAGS        := iouring
LINK        := -ldflags=-checklinkname=0
URING       := -tags $(TAGS) $(LINK)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 10s
BENCHDIR    ?=
say          = @printf '\n== %s\n' "$(1)"

.DEFAULT_GOAL := build
.PHONY: all build demo test race lint bench docs fuzz-short cross dist clean help

all: build

build: ## bin/skep, with io_uring
	$(call say,build bin/skep)
	$(GO) build $(URING) -o bin/skep ./tools/skep

demo: build ## a workload, a kill and a recovery on four files, under 90 s, no root
	bin/skep demo

test: ## what a user needs to trust it: vet, all tests, both backends, invariants
	$(call say,go vet, both build variants)
	$(GO) vet ./...
	$(GO) vet -tags $(TAGS) ./...
	$(call say,go test ./...: everything on the portable backend)
	$(GO) test ./...
	$(call say,go test ./store/...: io_uring built in, invariants checked)
	SKEP_CRASH_POINTS=300 $(GO) test -tags '$(TAGS) invariants' $(LINK) ./store/...

race: ## the tests under the race detector, shortened where they allow it
	$(call say,go test -race -short ./...)
	$(GO) test -race -short -timeout 20m $(URING) ./...

lint: ## gofmt, go vet, staticcheck, the house's own rules
	$(call say,gofmt)
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "not gofmt'ed:"; echo "$$bad"; exit 1; fi
	$(call say,go vet, both build variants)
	$(GO) vet ./...
	$(GO) vet -tags '$(TAGS) invariants' ./...
	$(call say,staticcheck, both build variants)
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(STATICCHECK) -tags '$(TAGS) invariants' ./...
	$(call say,the rules of tools/lint)
	$(GO) test -count=1 ./tools/lint

docs: ## links resolve, and tables in docs/ say what the code and the command do
	$(GO) test -count=1 -run 'Docs|Link|Documented' ./tools/lint ./tools/internal/cli ./store/segment

bench: build ## every figure of the README into bench/*.json (long; BENCHDIR=/path on the drives)
	@mkdir -p bench
	@for b in device restore put lookup recover; do \
		printf '\n== skep bench %s\n' $$b; \
		bin/skep bench $$b --json $(if $(BENCHDIR),--dir $(BENCHDIR)) >bench/$$b.json.part && mv bench/$$b.json.part bench/$$b.json && echo "bench/$$b.json" || exit 1; \
	done

fuzz-short: ## every fuzz target for FUZZTIME (10s)
	@set -e; for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			printf '\n== %s %s\n' $$p $$f; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; \
		done; \
	done

cross: ## the fallback compiles where there is no io_uring, and io_uring on arm64
	$(call say,cross-compile)
	@set -e; for t in linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do \
		echo "go build ./... for $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build ./...; \
	done
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) build $(URING) -o /dev/null ./tools/skep

dist: ## static binaries of linux/amd64 and linux/arm64, as released
	@for a in amd64 arm64; do \
		echo "dist/skep-linux-$$a"; GOOS=linux GOARCH=$$a CGO_ENABLED=0 $(GO) build -trimpath $(URING) -o dist/skep-linux-$$a ./tools/skep || exit 1; \
	done

clean: ## what the targets above made
	rm -rf bin bench dist

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
