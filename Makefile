# make test is the one command that tests everything. It needs redis-server,
# redis-tools, python3-redis and node; .ci/run installs them on Debian.

GO ?= go
FUZZTIME ?= 10s
# Two packages at a time: many start servers, and all are fit for two cores.
TESTFLAGS ?= -race -p 2 -timeout 20m

.PHONY: all build run test check generate fuzz bench sim chaos

all: build

build: ## bin/felix and bin/felixctl
	$(GO) build -o bin/ ./cmd/...

run: ## a broker to play with, its data in ./.felix
	$(GO) run ./cmd/felix dev

test: check ## everything but fuzzing
	$(GO) test $(TESTFLAGS) ./...
	$(GO) test -timeout 10m -run TestMembershipCrashes ./internal/clustertest # all of it: there is too much for the race detector

check: ## formatting, vet, staticcheck, generated code
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	tools/generated.sh

generate: ## the code of the schemas: the API's and the peers'
	api/generate.sh

fuzz: ## every fuzz target for FUZZTIME
	tools/fuzz.sh $(FUZZTIME)

SEED ?= 1
SEEDS ?= 10000
LEASES ?= false
sim: ## SEEDS runs of the simulated cluster, from SEED on; with LEASES=true only about leases
	$(GO) test ./internal/sim -count 1 -timeout 0 -v -run '^TestSeeds$$' -sim.seed $(SEED) -sim.seeds $(SEEDS) -sim.leases=$(LEASES)

DURATION ?= 1m
NODES ?= 3
# Only a seed that somebody gives: sim's default would make every run the same.
CHAOS_SEED = $(if $(filter file,$(origin SEED)),,$(SEED))
chaos: ## NODES real brokers for DURATION under many faults at once, of SEED if it is given; needs root
	FELIX_MEASURE=1 FELIX_CHAOS_DURATION=$(DURATION) FELIX_CHAOS_NODES=$(NODES) FELIX_CHAOS_SEED=$(CHAOS_SEED) \
		$(GO) test ./internal/crashtest -count 1 -timeout 0 -v -run '^TestChaos$$'

bench: ## the measurements of docs/performance.md
	$(GO) run ./bench
