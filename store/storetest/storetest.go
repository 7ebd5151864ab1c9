package storetest

import (
	"testing"

	"github.com/skepkv/skep"
)

// Config is what a test asks of the Store it wants opened. Zero fields ask for nothing:
// no cap that the test could meet.
type Config struct {
	// CapacityBytes is the cap on stored bytes, or the nearest the Store can do.
	CapacityBytes int64
	// TenantLeaseBytes is the cap on one tenant's leased bytes.
	TenantLeaseBytes int64
	// TenantPinBytes is the cap on one tenant's pinned bytes.
	TenantPinBytes int64
	// TenantNamespaces is the cap on one tenant's namespaces.
	TenantNamespaces int
	// ChainEvents asks that a put's commits are told of in the order of its chain.
	ChainEvents bool
}

// Open makes a fresh, empty Store.
type Open = func(t *testing.T, c Config) skep.Store

// Test checks that what open makes keeps the contract of package skep.
func Test(t *testing.T, open func(t *testing.T, c Config) skep.Store) {
	for _, g := range []struct {
		name string
		test func(t *testing.T, open Open)
	}{
		{"Namespaces", testNamespaces},
		{"Put", testPut},
		{"Chains", testChains},
		{"Unchained", testUnchained},
		{"Isolation", testIsolation},
		{"Lookup", testLookup},
		{"LookupRuns", testRuns},
		{"Leases", testLeases},
		{"Want", testWant},
		{"BlockWriter", testBlockWriter},
		{"Restore", testRestore},
		{"Destinations", testDestinations},
		{"Stages", testStages},
		{"Session", testSession},
		{"Claim", testClaim},
		{"Compute", testCompute},
		{"EitherWay", testEither},
		{"Delete", testDelete},
		{"Purge", testPurge},
		{"DeleteNamespace", testDeleteNamespace},
		{"Side", testSide},
		{"Hint", testHint},
		{"Alloc", testAlloc},
		{"Stats", testStats},
		{"Events", testEvents},
		{"List", testList},
		{"Capacity", testCapacity},
		{"BadInput", testBadInput},
		{"Ended", testEnded},
		{"Concurrent", testConcurrent},
	} {
		t.Run(g.name, func(t *testing.T) { g.test(t, open) })
	}
}
