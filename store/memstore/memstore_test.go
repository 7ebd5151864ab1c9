package memstore_test

import (
	"context"
	"testing"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func open(_ *testing.T, c storetest.Config) skep.Store {
	return memstore.New(memstore.Options{
		CapacityBytes: c.CapacityBytes, TenantLeaseBytes: c.TenantLeaseBytes, TenantPinBytes: c.TenantPinBytes, TenantNamespaces: c.TenantNamespaces,
		PoisonReleased: true,
	})
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Test(t, open)
}

func TestContractWhenItDeclines(t *testing.T) {
	t.Parallel()
	storetest.Test(t, func(_ *testing.T, c storetest.Config) skep.Store {
		return memstore.New(memstore.Options{
			CapacityBytes: c.CapacityBytes, TenantLeaseBytes: c.TenantLeaseBytes, TenantPinBytes: c.TenantPinBytes, TenantNamespaces: c.TenantNamespaces,
			DeclineWhenFull: true,
		})
	})
}

// The model compared with itself: equal, and unequal when one of the two evicts.
func TestRandom(t *testing.T) {
	t.Parallel()
	storetest.Random(t, open, storetest.RandomOptions{Ops: 2000})
}

func TestRandomUnderPressure(t *testing.T) {
	t.Parallel()
	storetest.Random(t, open, storetest.RandomOptions{Ops: 2000, Lossy: true, Config: storetest.Config{CapacityBytes: 300_000}})
}

// lasting outlives its Close, but for the leases, as a Store on devices does.
type lasting struct {
	*memstore.Store
	leases []skep.LeaseID
}

func (l *lasting) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	res, err := l.Store.Lookup(ctx, r)
	l.leases = append(l.leases, res.Lease.ID)
	return res, err
}

func (l *lasting) Close() error {
	for _, id := range l.leases {
		_ = l.Release(context.Background(), id)
	}
	return nil
}

func TestRandomWithRestarts(t *testing.T) {
	t.Parallel()
	st := &lasting{Store: memstore.New(memstore.Options{})}
	storetest.Random(t, func(*testing.T, storetest.Config) skep.Store { return st }, storetest.RandomOptions{
		Ops: 1000, Reopen: func(*testing.T) skep.Store { return st },
	})
}
