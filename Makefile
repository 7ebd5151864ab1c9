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
CRASH_TIME  ?= 10m
say          = @printf '\n== %s\n' "$(1)"

.DEFAULT_GOAL := build
.PHONY: all build demo test race lint bench docs fuzz-short fuzz-ci crash mutants failpoints errpaths cross dist cuda cuda-test gpu-bundle libskep clean help

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
	$(GO) vet -tags failpoints ./store
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

# Built without coverage, which would compile everything anew: mutations of the corpus, unguided. By
# number and not by time, so that a slow machine does the same.
FUZZRUNS    ?= 500
fuzz-ci: ## the parsers of frames, RESP, HTTP bodies, configuration and devices on FUZZRUNS (500) inputs each
	@set -e; d=$$(mktemp -d); trap 'rm -rf '$$d EXIT; for p in wire wire/resp wire/httpapi tools/internal/serve store/segment; do \
		$(GO) test -c -o $$d/fuzz.test ./$$p; \
		for f in $$(cd $$p && $$d/fuzz.test -test.list '^Fuzz'); do \
			printf '\n== %s %s\n' $$p $$f; \
			(cd $$p && $$d/fuzz.test -test.run '^$$' -test.fuzz "^$$f\$$" -test.fuzztime $(FUZZRUNS)x -test.fuzzminimizetime 10x -test.fuzzcachedir $$d/corpus); \
		done; \
	done

crash: ## the crash campaign for CRASH_TIME (10m), or SKEP_CRASH_POINTS points; prints points and seed
	SKEP_CRASH_TIME=$(if $(SKEP_CRASH_POINTS),,$(CRASH_TIME)) $(GO) test -count=1 -timeout 0 -run '^TestCrash$$' -v ./store

mutants: ## break shipped code one line at a time: every mutant must be noticed (long)
	$(GO) run ./tools/mutants

# FAILPOINT_PASSES: how often each fires, at different passes, in different scenarios, with different errors.
FAILPOINT_PASSES ?= 1
failpoints: ## an error at every look at one on the durable path, FAILPOINT_PASSES (1) times
	@d=$${FAILPOINTS:-$$(mktemp -d)} && if [ -z "$$FAILPOINTS" ]; then trap 'rm -rf '$$d EXIT; fi && \
	$(GO) run ./tools/errpaths -failpoints $$d && \
	SKEP_FAILPOINTS=$$d SKEP_FAILPOINT_PASSES=$(FAILPOINT_PASSES) $(GO) test -count=1 -timeout 60m -tags failpoints -overlay $$d/overlay.json -run '^TestFailpoints$$' -v ./store

errpaths: ## which error returns of the durable path no test reaches (long)
	@d=$$(mktemp -d) && trap 'rm -rf '$$d EXIT && \
	FAILPOINTS=$$d $(MAKE) --no-print-directory failpoints FAILPOINT_PASSES=4 && \
	SKEP_COVER_DIR=$$d SKEP_CRASH_POINTS=500 $(GO) test -timeout 60m -count=1 -coverpkg=./store,./store/catalog -coverprofile=$$d/all.cover ./store ./store/catalog && \
	$(GO) run ./tools/errpaths $$d/*.cover

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

# The CUDA back end builds without CUDA: its header is cut out of the binding's own module,
# and it is linked against a driver of our own that has every name and no GPU (gpu/fakecuda).
# What is built runs where a driver is, with libcuda.so.1 found there.
CUDADIR  := $(CURDIR)/bin/cuda
CUDAENV   = CGO_ENABLED=1 CGO_CFLAGS="-O2 -I$(CUDADIR)/include" CGO_LDFLAGS="-L$(CUDADIR)/fake"
CUDATEST := $(CUDADIR)/cuda.test

bin/cuda/fake/libcuda.so.1: $(wildcard gpu/fakecuda/*) go.mod
	@mkdir -p bin/cuda/include bin/cuda/fake
	$(GO) mod download gorgonia.org/cu
	@{ printf '#ifndef SKEP_CUDA_H\n#define SKEP_CUDA_H\n#include <stddef.h>\n#include <stdint.h>\n#include <stdlib.h>\n#include "versions.h"\n' && \
	  sed -n '/^typedef uint32_t cuuint32_t;/,$$p' "$$($(GO) list -m -f '{{.Dir}}' gorgonia.org/cu)/cmd/genlib/cuda.h" && echo '#endif'; } >bin/cuda/include/cuda.h
	@sed -n 's/^.*CUresult *//; s/^\(cu[A-Z][A-Za-z0-9_]*\)(.*/STUB(\1)/p' bin/cuda/include/cuda.h | sort -u >bin/cuda/include/stubs.h
	@cp gpu/fakecuda/versions.h bin/cuda/include/
	$(CC) -O2 -Wall -fPIC -shared -Wl,-soname,libcuda.so.1 -I bin/cuda/include -o $@ gpu/fakecuda/*.c -lpthread
	@ln -sf libcuda.so.1 bin/cuda/fake/libcuda.so

cuda: bin/cuda/fake/libcuda.so.1 ## bin/cuda/skep-gpu, the command that holds a GPU; builds without CUDA
	$(CUDAENV) $(GO) build -tags cuda -ldflags "-s -w" -o $(CUDADIR)/skep-gpu ./tools/skep-gpu

.PHONY: bin/cuda/cuda.test
bin/cuda/cuda.test: bin/cuda/fake/libcuda.so.1
	$(CUDAENV) $(GO) test -c -tags cuda -ldflags "-s -w" -o $@ ./gpu/cuda

cuda-test: bin/cuda/cuda.test ## the CUDA back end vetted, and its tests on the fake driver, without a GPU
	$(CUDAENV) $(GO) vet -tags cuda ./gpu/... ./tools/skep-gpu
	$(CUDAENV) $(GO) run $(STATICCHECK) -tags cuda ./gpu/... ./tools/skep-gpu
	LD_LIBRARY_PATH=$(CUDADIR)/fake $(CUDATEST) -test.timeout 5m $(CUDATESTFLAGS)
	$(CUDAENV) SKEP_TEST_BACKEND=cuda LD_LIBRARY_PATH=$(CUDADIR)/fake $(GO) test -tags cuda -count=1 ./tools/skep-gpu

# The C interface goes along compressed: run.sh unpacks it beside the programs, which look for it there.
CENGINE = $(CC) -O1 -std=gnu99 -I tools/libskep -I $(CUDADIR)/include tools/libskep/testdata/$(1).c -o bin/gpu-bundle/engine-$(1) \
	-L bin/cuda/lib -lskep $(CUDADIR)/fake/libcuda.so.1 -ldl -Wl,-rpath,'$$ORIGIN'

gpu-bundle: cuda bin/cuda/cuda.test ## bin/gpu-bundle: what to run on a machine with a driver (run.sh), under 30 MB
	@rm -rf bin/gpu-bundle && mkdir -p bin/gpu-bundle/fake bin/cuda/lib
	@cp $(CUDATEST) $(CUDADIR)/skep-gpu gpu/cuda/run.sh bin/gpu-bundle/
	@cp bin/cuda/fake/libcuda.so.1 bin/gpu-bundle/fake/
	$(GO) build -buildmode=c-shared -ldflags "-s -w" -o bin/cuda/lib/libskep.so ./tools/libskep
	@gzip -9c bin/cuda/lib/libskep.so >bin/gpu-bundle/libskep.so.gz && cp tools/libskep/skep.h bin/gpu-bundle/
	@$(call CENGINE,cuda) && $(call CENGINE,large)
	@test $$(du -sm bin/gpu-bundle | cut -f1) -lt 30 || { echo "bin/gpu-bundle is too large"; exit 1; }
	@du -sh bin/gpu-bundle

libskep: bin/cuda/fake/libcuda.so.1 ## bin/libskep.so for programs in C, and programs that use it: in C, in Python, on the fake driver
	$(GO) build -buildmode=c-shared -o bin/libskep.so ./tools/libskep
	SKEP_LIBSKEP=../../bin/libskep.so SKEP_CUDADIR=$(CUDADIR) $(GO) test -count=1 ./tools/libskep

clean: ## what the targets above made
	rm -rf bin bench dist

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
