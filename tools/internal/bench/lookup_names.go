package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/hist"
)

// namesRate is how many namespaces a second are made, and as many purged, in the row
// "names change".
const namesRate = 100

// namesRound is how long a round of it is, and at least how many lookups.
const namesRound = time.Second / 4

// lookupNames measures lookups while namespaces stay as they are and while others make and
// purge them, in turns: an fsync of the catalog that a lookup waits for shows in the second.
func (o *LookupOptions) lookupNames(ctx context.Context, st skep.Store, scope skep.Scope, filled int) (rows []LookupRow, err error) {
	rows = []LookupRow{{What: "names still", Keys: o.Keys}, {What: "names change", Keys: o.Keys}}
	var all [2]hist.Hist
	rng := rand.New(rand.NewPCG(o.Seed, 5))
	keys := make([]skep.Key, o.Keys)
	made := 0
	for range o.Rounds {
		for i := range rows {
			stop := func() error { return nil }
			if i == 1 {
				stop = changeNames(ctx, st, &made)
			}
			var h hist.Hist
			n, found := 0, 0
			for began := time.Now(); n < o.Lookups || time.Since(began) < namesRound; n++ {
				c := rng.IntN(filled)
				for j := range keys {
					keys[j] = chainKey(o.Seed, c, j)
				}
				start := time.Now()
				f, err := st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: keys})
				if err == nil && f.Lease.ID != 0 {
					err = st.Release(ctx, f.Lease.ID)
				}
				took := time.Since(start)
				if err != nil {
					_ = stop()
					return nil, err
				}
				h.Record(took)
				all[i].Record(took)
				found += f.Blocks
				if f.Blocks > chainDepth(o.Seed, c, o.Keys) {
					rows[i].Wrong++
				}
			}
			if err := stop(); err != nil {
				return nil, err
			}
			rows[i].Samples = append(rows[i].Samples, LookupSample{n, us(h.Quantile(.5)), us(h.Quantile(.99)), float64(found) / float64(n)})
			rows[i].FoundMean += float64(found) / float64(n) / float64(o.Rounds)
		}
	}
	for i := range rows {
		rows[i].UsP50, rows[i].UsP99 = us(all[i].Quantile(.5)), us(all[i].Quantile(.99))
	}
	rows[1].Changed = int64(made)
	return rows, nil
}

// changeNames makes and purges namespaces until the function it gives is called.
func changeNames(ctx context.Context, st skep.Store, made *int) (stop func() error) {
	end, done := make(chan struct{}), make(chan error, 1)
	n := *made
	go func() {
		tick := time.NewTicker(time.Second / namesRate)
		defer tick.Stop()
		for {
			select {
			case <-end:
				done <- nil
				return
			case <-tick.C:
			}
			ns, err := st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "names", Name: fmt.Sprintf("n%d", n), Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
			if err == nil {
				err = st.Purge(ctx, skep.Purge{Namespace: ns.ID})
			}
			if err != nil {
				done <- err
				return
			}
			n++
		}
	}()
	return func() error {
		close(end)
		err := <-done
		*made = n
		return err
	}
}
