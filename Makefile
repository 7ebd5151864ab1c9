# skep's commands. `make help` lists them; README.md names the two to begin with.
#
# The released binaries drive io_uring through giouring, which links only with
# -checklinkname=0; the tag iouring builds it in. Plain `go build ./...` and
# `go test ./...` need neither: they use the portable pool of threads.

SHELL       := bash
GO          ?= go
TAGS        := iouring
LINK        := -ldflags=-checklinkname=0
URING       := -tags $(TAGS) $(LINK)
DEV          = $(GO) tool -modfile=$(CURDIR)/tools/dev/go.mod
STATICCHECK  = $(DEV) staticcheck
# Compiled once, whichever directory a checkout lies in.
export GOFLAGS := $(strip -trimpath $(filter-out -trimpath,$(GOFLAGS)))
FUZZTIME    ?= 10s
BENCHDIR    ?=
CRASH_TIME  ?= 10m
say          = @printf '\n== %s\n' "$(1)"

# What needs modules that an embedder of skep does not is in modules of its own: each takes this one from beside it.
# ./... means the packages of one module; each does the same, a go command and its arguments, in the others.
MODULES     := gpu/cuda tools/skep-gpu tools/integration tools/dist
each         = @set -e; for m in $(MODULES); do echo "$(GO) $(1) -C $$m $(2)"; $(GO) $(1) -C $$m $(2); done
# go test, by gotestsum in the gate.
GOTEST      := GO='$(GO)' $(CURDIR)/tools/gotest.sh
eachtest     = @set -e; for m in $(MODULES); do echo "go test -C $$m $(1)"; $(GOTEST) -C $$m $(1); done
eachcheck    = @set -e; for m in $(MODULES); do echo "staticcheck in $$m"; (cd $$m && $(STATICCHECK) $(1)); done

.DEFAULT_GOAL := build
.PHONY: all build download demo cluster apart test test-all adversaries explore test-loaded timing race race-all lint bench docs fuzz-short fuzz-ci crash clock soak leftovers second-time hostile greedy differential operator mutants failpoints schedule errpaths cross cross-all dist image dist-check dist-test cuda cuda-test gpu-bundle libskep wheel test-wheel test-engines test-engines-newest gpu-engines clean help

all: build

build: ## bin/skep and bin/skep-bench, with io_uring
	$(call say,build bin/skep and bin/skep-bench)
	$(GO) build $(URING) -o bin/ ./tools/skep ./tools/skep-bench

download: ## the modules that all of it is made of
	$(GO) mod download
	$(GO) mod download -modfile=tools/dev/go.mod
	$(call each,mod download,)

demo: build ## a workload, a kill and a recovery on four files, under 90 s, no root
	bin/skep demo --page bin/demo.html

cluster: build ## three nodes on this machine, a workload, a kill of one: what was lost and found; under two minutes, no root
	bin/skep cluster demo

OTHER       ?=
apart: ## root: a cluster whose nodes and clients are processes on networks of their own, cut, killed, and upgraded from OTHER=COMMIT and back
	@set -e; if [ -n "$(OTHER)" ]; then \
		d=$$(mktemp -d); trap 'git worktree remove --force '$$d'/tree; rm -rf '$$d EXIT; \
		git worktree add -q --detach $$d/tree $(OTHER); $(GO) build -C $$d/tree $(URING) -o $$d/skep ./tools/skep; export SKEP_APART_OTHER=$$d/skep; \
	fi; $(GO) test -count=1 -v -timeout 0 -run '^TestApart$$' ./tools/internal/apart

# Everything is compiled once, with everything built in, and waits beside what computes.
TESTFLAGS   ?=
test: ## what a user needs to trust it: all tests in their short form, both backends, invariants (4 minutes)
	$(call say,go test -short ./...: both device backends and the invariants built in)
	$(GOTEST) -short -p 4 -parallel 8 -timeout 20m -tags '$(TAGS) invariants' $(LINK) $(TESTFLAGS) ./...
	$(call say,go test -short ./... of the other modules: a browser and a Redis client where they are installed)
	$(call eachtest,-short -p 4 -parallel 8 -tags '$(TAGS) invariants' $(LINK) $(TESTFLAGS) ./...)

ENGINE      := ./store ./store/device ./store/memory ./store/internal/...
test-all: ## the long form of everything, nothing of it cached: failpoints, adversaries, fuzzing, races, every system
	$(call say,go test ./...: everything but the engine)
	$(GOTEST) -count=1 -timeout 30m -skip '$(PLAYED)' $(TESTFLAGS) $$($(GO) list ./... | grep -vE '/skep/store(/device|/memory|/internal/.*)?$$')
	$(call say,go test ./... of the other modules: a browser and a Redis client)
	$(call eachtest,-count=1 $(TESTFLAGS) ./...)
	$(call say,go test: the engine on io_uring with invariants checked)
	$(GOTEST) -count=1 -timeout 30m -skip '$(PLAYED)' -tags '$(TAGS) invariants' $(LINK) $(TESTFLAGS) $(ENGINE)
	$(call say,go test -short: the engine on the portable backend)
	$(GOTEST) -count=1 -short -skip '$(PLAYED)' $(TESTFLAGS) $(ENGINE)
	@for s in failpoints adversaries fuzz-ci cross-all race-all; do $(MAKE) --no-print-directory $$s || exit 1; done
	@$(MAKE) --no-print-directory soak SOAK_TIME=30s
	@$(MAKE) --no-print-directory schedule SCHEDULE_TIME=20s
	@$(MAKE) --no-print-directory explore

# The adversaries: NAME:PACKAGE:TEST. Without SKEP_NAME_TIME each plays its short form, and draws what SKEP_SEED says.
ADVERSARIES := hostile:./tools/internal/wired:TestHostileClients schedule:./store:TestSchedule books:./tools/internal/books:TestBooks \
	greedy:./tools/internal/wired:TestGreedyTenant leftovers:./store:TestLeftovers.* clock:./store:TestClock.* second-time:./store:TestSecondTime.* starved:./store:TestStarved differential:./wire/resp:TestDifferential operator:./tools/internal/cli:TestOperator \
	idle:./store:TestAStoreComesToRest \
	hostile-cluster:./tools/internal/apart:TestHostileToACluster greedy-cluster:./tools/internal/apart:TestGreedyOnACluster clock-cluster:./tools/internal/apart:TestClocksOfACluster starved-cluster:./tools/internal/apart:TestStarvedNode
empty       :=
space       := $(empty) $(empty)
PLAYED      := ^($(subst $(space),|,$(foreach a,$(ADVERSARIES),$(lastword $(subst :, ,$(a))))))$$
adversaries: ## every adversary in its short form, one after the other; prints their seeds
	@set -e; d=$$(mktemp -d); trap 'rm -rf '$$d EXIT; for a in $(ADVERSARIES); do \
		IFS=: read -r name pkg test <<<"$$a"; printf '\n== %s: %s %s\n' "$$name" "$$pkg" "$$test"; \
		$(GO) test -count=1 -timeout 20m -v -run "^$$test\$$" "$$pkg" >$$d/out 2>&1 || { cat $$d/out; exit 1; }; \
		grep -m 3 -i 'seed' $$d/out || true; grep -E '^(ok|--- SKIP)' $$d/out; \
	done

# What is drawn anew each time: random tests, a short crash campaign, storms of a cluster, the adversaries.
EXPLORED    := ^(TestRandom.*|TestCrash|TestErrorAtEveryIndex|TestAdmissionUnderLoad)$$
KEEP        ?= .ci/kept
explore: ## the random tests, storms of a cluster and the adversaries with a seed nobody has had; what fails is kept in KEEP (.ci/kept)
	@mkdir -p $(KEEP); seed=$${SKEP_SEED:-$$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')}; log=$(KEEP)/seed-$$seed.log; \
	printf '\n== SKEP_SEED=%s\n' $$seed; what=ok; \
	{ SKEP_SEED=$$seed SKEP_CRASH_POINTS=300 $(GO) test -count=1 -timeout 20m -run '$(EXPLORED)' ./store ./store/memstore ./index/... && \
	  SKEP_STORM_SEED=$$seed SKEP_STORM_SEEDS=20 $(GO) test -count=1 -timeout 20m -run '^TestStorm' ./replication/storm && \
	  SKEP_SEED=$$seed $(MAKE) --no-print-directory adversaries; } >$$log 2>&1 || what=FAILED; \
	echo "$$(date -u +%FT%TZ) $$(git rev-parse --short HEAD 2>/dev/null || echo -) SKEP_SEED=$$seed $$what" | tee -a $(KEEP)/seeds.txt; \
	if [ $$what = ok ]; then rm -f $$log; else tail -n 60 $$log; echo "kept: $$log"; exit 1; fi

RUNS        ?= 20
test-loaded: ## make test RUNS (20) times on a machine that has too much to do; none may be red (bin/loaded)
	@tools/loaded.sh $(RUNS)

timing: ## whether a tenant can tell from answers' times what others have; for a machine that does nothing else
	$(GO) test -run '^$$' -bench 'Timing|Timed' -benchtime 1x ./wire ./wire/resp

# What the race detector looks at before each change: the packages whose code runs concurrently. Not there are tests
# that try one state after another, and contracts beyond one transport; `make race-all` has everything.
RACED       := ./store ./store/catalog ./store/device ./store/memory ./store/internal/... ./store/sparse ./index ./index/coact ./wire/... ./gpu ./gpu/loan ./gpu/lend ./replication/consensus ./replication/storm
INTURN      := ^(TestAStoreComesToRest|TestGoldenImage|TestSideRowsAfterACrashAnywhere|TestRefusedByName|TestRebuildRestoresEverything|TestDamageNeverComesOut|TestCrash|TestErrorAtEveryIndex|TestLeftovers|TestEvictedBlocksAreForgottenInMemory|TestACrashLeavesAPrefixOfTheCommitsAndAllSyncedOnes|TestOpenSurvivesAnErrorAtAnyOperation|TestCrashImagesAreWhatACrashCouldLeave|TestRowsSurviveADeathAnywhere|TestReclusterSurvivesADeathAnywhere|TestContractOnTheReference|TestReuseSampled|TestVictimsAmongMany|TestTableGrowsThroughManySplits|TestFleets|TestContractTLS|TestContractUnix|TestContractNarrow|TestPythonClient|TestRedisBenchmark|TestSlotsAreDealt|TestLargeBatches|TestAScanDoesSoMuchMatching|TestBlocksOfSeveralUnitsComeOutOfMemoryAsTheyWent|TestNewBlocksStayInAnUncappedStore|TestTheCapFollowsTheDrives|TestEvictedUnread|TestSmallValuesSharePages|TestBadOpenings|TestGoodOpenings|TestOtherFormatsAreRefused|TestAdmissionBudgetHolds)$$
race: ## the race detector on what runs concurrently, in the short form (4 minutes)
	$(call say,go test -race -short)
	$(GOTEST) -race -short -p 4 -parallel 4 -timeout 20m $(URING) -skip '$(INTURN)' $(RACED)

# Where nothing happens beside anything else there is no race to be found: simulations and generators.
ALONE       := /(lint|errpaths|mutants|tools/schedule|overlay|trace|ttft|hist|page|payload|chat|twopointer|elastic|layout|slots|index/sim|twopointer/sim)$$
race-all: ## every test under the race detector, shortened where it allows it
	$(GOTEST) -race -short -count=1 -timeout 30m $(URING) $$($(GO) list ./... | grep -vE '$(ALONE)')
	$(call eachtest,-race -short -count=1 -timeout 20m $(URING) ./...)

lint: ## gofmt, go vet, staticcheck, the house's own rules
	$(call say,gofmt and modules)
	@for m in . $(MODULES) tools/dev; do \
		$(GO) list -C $$m -m all >/dev/null && d=$$($(GO) -C $$m mod tidy -diff 2>/dev/null) && [ -z "$$d" ] || { \
			echo "$$m/go.mod or go.sum is not tidy: run 'go mod tidy && go list -mod=mod -m all' there"; echo "$$d"; exit 1; }; \
	done
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "not gofmt'ed:"; echo "$$bad"; exit 1; fi
	$(call say,go vet and staticcheck with everything built in)
	$(GO) vet -tags '$(TAGS) invariants' ./...
	$(STATICCHECK) -tags '$(TAGS) invariants' ./...
	$(call each,vet,./...)
	$(call eachcheck,./...)
	$(call say,the same of what is built in another way without it)
	@set -e; list() { $(GO) list -f '{{.ImportPath}} {{.GoFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}' "$$@" ./... | sort; }; \
		other=$$(comm -23 <(list) <(list -tags '$(TAGS) invariants') | cut -d' ' -f1); [ -n "$$other" ]; echo $$other; \
		$(GO) vet $$other; $(STATICCHECK) $$other
	$(GO) vet -tags failpoints ./store
	$(call say,the rules of tools/lint)
	$(GO) test -count=1 ./tools/lint

docs: ## writes the generated pages; links resolve, and tables in docs/ say what the code and the commands do
	$(GO) run ./tools/docs
	$(GO) test -count=1 -run 'Docs|Link|Documented' ./tools/lint ./tools/docs ./tools/internal/cli ./tools/internal/lab ./store/segment ./store/catalog ./wire ./wire/server

bench: build ## every figure of the README into bench/*.json (long; BENCHDIR=/path on the drives)
	@mkdir -p bench
	@for b in device restore put lookup recover; do \
		printf '\n== skep-bench %s\n' $$b; \
		bin/skep-bench $$b --json $(if $(BENCHDIR),--dir $(BENCHDIR)) >bench/$$b.json.part && mv bench/$$b.json.part bench/$$b.json && echo "bench/$$b.json" || exit 1; \
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
	GOGC=400 SKEP_CRASH_TIME=$(if $(SKEP_CRASH_POINTS),,$(CRASH_TIME)) $(GO) test -count=1 -timeout 0 -run '^TestCrash$$' -v ./store

HOSTILE_TIME ?= 10m
# Where it may mount a tmpfs (root), the store has a file system of its own, and it fills up too.
SOAK_TIME ?= 10m
soak: ## clients in processes of their own keep books while the server is killed and its drives lie, for SOAK_TIME (10m); prints its seed
	SKEP_SOAK_TIME=$(SOAK_TIME) $(GO) test $(URING) -count=1 -timeout 0 -run '^TestBooks$$' -v ./tools/internal/books

leftovers: ## what interrupted steps leave in a store's directory, every two of them, before an open
	SKEP_LEFTOVERS=all $(GO) test -count=1 -timeout 30m -run '^TestLeftovers$$' -v ./store

SECOND_TIME ?= 10m
second-time: ## every call of the engine, refused or failed, made again by its caller, for SECOND_TIME (10m); prints its seed
	SKEP_SECOND_TIME=$(SECOND_TIME) $(GO) test -count=1 -timeout 0 -run '^TestSecondTimeDrawn$$' -v ./store

IDLE_TIME ?= 10m
idle: ## a store comes to rest after any load, for IDLE_TIME (10m), seed after seed
	SKEP_IDLE_TIME=$(IDLE_TIME) $(GO) test -count=1 -timeout 0 -run '^TestAStoreComesToRest$$' -v ./store

STARVED_TIME ?= 10m
starved: ## others use up descriptors, memory and disks and give them back, of a store and of a node of three, for STARVED_TIME (10m) each; prints its seed
	SKEP_STARVED_TIME=$(STARVED_TIME) $(GO) test -count=1 -timeout 0 -run '^TestStarved$$' -v ./store
	SKEP_STARVED_TIME=$(STARVED_TIME) $(GO) test -count=1 -timeout 0 -run '^TestStarvedNode$$' -v ./tools/internal/apart

hostile: ## clients that do their worst to a server of all protocols, and to three nodes, for HOSTILE_TIME (10m) each; prints its seed; RACE=-race looks for races in both
	SKEP_HOSTILE_TIME=$(HOSTILE_TIME) $(GO) test $(RACE) -count=1 -timeout 0 -run '^TestHostileClients$$' -v ./tools/internal/wired
	SKEP_HOSTILE_TIME=$(HOSTILE_TIME) $(GO) test $(RACE) -count=1 -timeout 0 -run '^TestHostileToACluster$$' -v ./tools/internal/apart

DIFFERENTIAL_TIME ?= 2m
GREEDY_TIME ?= 2m
differential: ## a real Redis, and a real Valkey where there is one, beside RESP, on random commands, for DIFFERENTIAL_TIME (2m); prints its seed
	SKEP_DIFFERENTIAL_TIME=$(DIFFERENTIAL_TIME) $(GO) test -count=1 -timeout 0 -run '^TestDifferential$$' -v ./wire/resp

greedy: ## a tenant that takes all it can get of everything that is counted, beside another, at a server and at three nodes, for GREEDY_TIME (2m) each; judges time; prints its seed
	SKEP_GREEDY_TIME=$(GREEDY_TIME) $(GO) test -count=1 -timeout 0 -run '^TestGreedyTenant$$' -v ./tools/internal/wired
	SKEP_GREEDY_TIME=$(GREEDY_TIME) $(GO) test -count=1 -timeout 0 -run '^TestGreedyOnACluster$$' -v ./tools/internal/apart

OPERATOR_TIME ?= 10m
operator: ## copies and half copies of a store, devices swapped, cut, blanked, foreign or gone, and every command on each, for OPERATOR_TIME (10m); prints its seed
	SKEP_OPERATOR_TIME=$(OPERATOR_TIME) $(GO) test -count=1 -timeout 0 -run '^TestOperator$$' -v ./tools/internal/cli

CLOCK_TIME  ?= 10m
clock: ## tests of all that is promised for a while, again and again for CLOCK_TIME (10m), while the machine's clock is set by hours; then three nodes whose clocks differ, for as long
	@end=$$(( $$(date +%s) + $$(tools/seconds.sh $(CLOCK_TIME)) )); set -e; while :; do \
		$(GO) test -count=1 -run 'Clock|Lasting|Lease|Pin|Hint|TTL|Expir|Deadline|Timeout|Promise|Transcripts|Store$$' \
			./index ./store ./store/memstore ./wire/... ./gpu ./gpu/loan ./tools/internal/serve; \
		[ $$(date +%s) -lt $$end ] || break; \
	done
	SKEP_CLOCK_TIME=$(CLOCK_TIME) $(GO) test -count=1 -timeout 0 -run '^TestClocksOfACluster$$' -v ./tools/internal/apart

mutants: ## break shipped code one line at a time: every mutant must be noticed (long)
	$(GO) run ./tools/mutants

# FAILPOINT_PASSES: how often each fires, at different passes, in different scenarios, with different errors.
FAILPOINT_PASSES ?= 1
failpoints: ## an error at every look at one on the durable path, FAILPOINT_PASSES (1) times
	@d=$${FAILPOINTS:-$$(mktemp -d)} && if [ -z "$$FAILPOINTS" ]; then trap 'rm -rf '$$d EXIT; fi && \
	$(GO) run ./tools/errpaths -failpoints $$d && \
	SKEP_FAILPOINTS=$$d SKEP_FAILPOINT_PASSES=$(FAILPOINT_PASSES) $(GO) test -count=1 -timeout 60m -tags failpoints -overlay $$d/overlay.json -run '^TestFailpoints$$' -v ./store

# A build with a pause at every lock, every change of atomic state and every channel of the engine (tools/schedule).
SCHEDULE_TIME ?= 2m
schedule: ## stores in which everything happens at once, with random pauses wherever goroutines meet, for SCHEDULE_TIME (2m)
	@d=$$(mktemp -d) && trap 'rm -rf '$$d EXIT && $(GO) run ./tools/schedule -o $$d && \
	SKEP_SCHEDULE=$$d SKEP_SCHEDULE_TIME=$(SCHEDULE_TIME) $(GO) test -count=1 -timeout 0 -tags '$(TAGS) invariants' $(LINK) \
		-overlay $$d/overlay.json -run '^TestSchedule$$' -v ./store

errpaths: ## which error returns of the durable path no test reaches (long)
	@d=$$(mktemp -d) && trap 'rm -rf '$$d EXIT && \
	FAILPOINTS=$$d $(MAKE) --no-print-directory failpoints FAILPOINT_PASSES=4 && \
	SKEP_COVER_DIR=$$d SKEP_CRASH_POINTS=500 $(GO) test -timeout 60m -count=1 -coverpkg=./store,./store/catalog,./store/internal/... -coverprofile=$$d/all.cover ./store ./store/catalog ./store/internal/... && \
	$(GO) run ./tools/errpaths $$d/*.cover

CROSS       ?= windows/amd64
cross: ## it compiles for CROSS (windows/amd64), where there is no io_uring, and so do its tests
	$(call say,cross-compile)
	@set -e; for t in $(CROSS); do \
		for m in . $(MODULES); do \
			echo "go build -C $$m ./... for $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build -C $$m -o /dev/null ./...; \
		done; \
		echo "go vet ./... for $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) vet ./...; \
	done

cross-all: ## for every system it is meant to compile for, and io_uring on arm64
	@$(MAKE) --no-print-directory cross CROSS='linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64'
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) build $(URING) -o /dev/null ./tools/skep ./tools/skep-bench

# From the commit, not from what lies here. libskep needs a C compiler and is for this machine's architecture only.
dist: ## archives, Debian packages, the image and Helm's chart of the commit, for linux/amd64 and linux/arm64, with SHA256SUMS (dist/)
	$(GO) run -C tools/dist . -o $(CURDIR)/dist

image: ## the container image of the commit alone, without a daemon: a tar for podman load
	$(GO) run -C tools/dist . -o $(CURDIR)/dist -kind image

dist-check: ## whether the same commit gives the same bytes, the second time with an empty build cache (minutes)
	GO='$(GO)' tools/dist/check.sh

dist-test: ## installs what make dist makes: archive, package in a clean Debian (root, mmdebstrap), image; and does the quick start
	$(GO) test -C tools/dist -count=1 -v ./...

# The CUDA back end builds without CUDA: its header is cut out of the binding's own module,
# and it is linked against a driver of our own that has every name and no GPU (gpu/fakecuda).
# What is built runs where a driver is, with libcuda.so.1 found there.
CUDADIR  := $(CURDIR)/bin/cuda
CUDAENV   = CGO_ENABLED=1 CGO_CFLAGS="-O2 -I$(CUDADIR)/include" CGO_LDFLAGS="-L$(CUDADIR)/fake"
CUDATEST := $(CUDADIR)/cuda.test

bin/cuda/fake/libcuda.so.1: $(wildcard gpu/fakecuda/*) gpu/cuda/go.mod
	@mkdir -p bin/cuda/include bin/cuda/fake
	$(GO) mod download -C gpu/cuda gorgonia.org/cu
	@{ printf '#ifndef SKEP_CUDA_H\n#define SKEP_CUDA_H\n#include <stddef.h>\n#include <stdint.h>\n#include <stdlib.h>\n#include "versions.h"\n' && \
	  sed -n '/^typedef uint32_t cuuint32_t;/,$$p' "$$($(GO) list -C gpu/cuda -m -f '{{.Dir}}' gorgonia.org/cu)/cmd/genlib/cuda.h" && echo '#endif'; } >bin/cuda/include/cuda.h
	@sed -n 's/^.*CUresult *//; s/^\(cu[A-Z][A-Za-z0-9_]*\)(.*/STUB(\1)/p' bin/cuda/include/cuda.h | sort -u >bin/cuda/include/stubs.h
	@cp gpu/fakecuda/versions.h bin/cuda/include/
	$(CC) -O2 -Wall -fPIC -shared -Wl,-soname,libcuda.so.1 -I bin/cuda/include -o $@ gpu/fakecuda/*.c -lpthread
	@ln -sf libcuda.so.1 bin/cuda/fake/libcuda.so

cuda: bin/cuda/fake/libcuda.so.1 ## bin/cuda/skep-gpu, the command that holds a GPU; builds without CUDA
	$(CUDAENV) $(GO) build -C tools/skep-gpu -tags cuda -ldflags "-s -w" -o $(CUDADIR)/skep-gpu .

.PHONY: bin/cuda/cuda.test
bin/cuda/cuda.test: bin/cuda/fake/libcuda.so.1
	$(CUDAENV) $(GO) test -C gpu/cuda -c -tags cuda -ldflags "-s -w" -o $(CURDIR)/$@ .

cuda-test: bin/cuda/fake/libcuda.so.1 ## the CUDA back end vetted, and its tests on the fake driver, without a GPU
	$(CUDAENV) $(GO) vet -tags cuda ./gpu/...
	$(CUDAENV) $(STATICCHECK) -tags cuda ./gpu/...
	@set -e; for m in gpu/cuda tools/skep-gpu; do \
		echo "vet and staticcheck of $$m"; $(CUDAENV) $(GO) vet -C $$m -tags cuda ./...; (cd $$m && $(CUDAENV) $(STATICCHECK) -tags cuda ./...); \
	done
	$(CUDAENV) LD_LIBRARY_PATH=$(CUDADIR)/fake $(GOTEST) -C gpu/cuda -tags cuda -count=1 -timeout 5m $(CUDATESTFLAGS) ./
	$(CUDAENV) SKEP_TEST_BACKEND=cuda LD_LIBRARY_PATH=$(CUDADIR)/fake $(GOTEST) -C tools/skep-gpu -tags cuda -count=1 ./

# The C interface goes along compressed: run.sh unpacks it beside the programs, which look for it there.
CENGINE = $(CC) -O1 -std=gnu99 -I tools/libskep -I $(CUDADIR)/include tools/libskep/testdata/$(1).c -o bin/gpu-bundle/engine-$(1) \
	-L bin/cuda/lib -lskep $(CUDADIR)/fake/libcuda.so.1 -ldl -Wl,-rpath,'$$ORIGIN'

gpu-bundle: cuda bin/cuda/cuda.test ## bin/gpu-bundle: what to run on a machine with a driver (run.sh), under 30 MB
	@rm -rf bin/gpu-bundle && mkdir -p bin/gpu-bundle/fake bin/cuda/lib
	@cp $(CUDATEST) $(CUDADIR)/skep-gpu gpu/cuda/run.sh bin/gpu-bundle/
	@cp bin/cuda/fake/libcuda.so.1 bin/gpu-bundle/fake/
	GO='$(GO)' tools/libskep/build.sh bin/cuda/lib '-s -w'
	@gzip -9c bin/cuda/lib/libskep.so.1 >bin/gpu-bundle/libskep.so.1.gz && cp tools/libskep/skep.h bin/gpu-bundle/
	@$(call CENGINE,cuda) && $(call CENGINE,large)
	@test $$(du -sm bin/gpu-bundle | cut -f1) -lt 30 || { echo "bin/gpu-bundle is too large"; exit 1; }
	@du -sh bin/gpu-bundle

libskep: bin/cuda/fake/libcuda.so.1 ## bin/libskep.so for programs in C, and programs that use it: in C, in Python, on the fake driver
	GO='$(GO)' tools/libskep/build.sh bin
	SKEP_LIBSKEP=../../bin/libskep.so SKEP_CUDADIR=$(CUDADIR) SKEP_BINARY=$(wildcard $(CURDIR)/bin/skep) $(GOTEST) -count=1 -parallel 6 ./tools/libskep

wheel: ## bin/wheel/skepkv-*.whl, the Python package with libskep.so.1 inside, for glibc 2.17 and later
	GO='$(GO)' tools/skepkv/wheel.sh

test-wheel: build ## builds the wheel, installs it in a clean environment of each Python at hand, and runs its tests and the tiny engine's against bin/skep
	GO='$(GO)' tools/skepkv/wheel.sh test

test-engines: build ## the connectors under LMCache's, SGLang's and vLLM's own classes, on wheels that are installed once; no GPU
	GO='$(GO)' tools/libskep/build.sh bin
	tools/skepkv/engines.sh

test-engines-newest: build ## test-engines with the newest LMCache, SGLang and vLLM that pip finds in place of the pinned ones; for once a week
	GO='$(GO)' tools/libskep/build.sh bin
	SKEPKV_NEWEST=1 tools/skepkv/engines.sh

gpu-engines: build ## vLLM and SGLang for real, on a GPU, with skep behind them, where python3 has them and skepkv; says what was seen, or why it was not run
	python3 tools/skepkv/gpu_engines.py

clean: ## what the targets above made
	rm -rf bin bench dist

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
