package index

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is the index as a map: what is stored, by number. Its tree is fixed: block n
// of a tree of fan-out 3 has parent (n-1)/3.
type model struct {
	blocks map[uint64]Entry
}

func modelEntry(n uint64) Entry {
	e := Entry{FP: fpOf(n), Location: at(uint32(1+n%7), n+1), Pages: uint32(1 + n%5), Namespace: uint32(n % 3), Tenant: uint16(n % 4)}
	for p := n; p > 0; p = (p - 1) / 3 {
		e.Depth++
	}
	if n > 0 {
		e.HasParent, e.Parent = true, fpOf((n-1)/3)
	}
	return e
}

func (m *model) rooted(n uint64) bool {
	for {
		if _, ok := m.blocks[n]; !ok {
			return false
		}
		if n == 0 {
			return true
		}
		n = (n - 1) / 3
	}
}

// path is the chain that ends in n, root first.
func path(n uint64) []uint64 {
	var up []uint64
	for ; n > 0; n = (n - 1) / 3 {
		up = append(up, n)
	}
	up = append(up, 0)
	for i, j := 0, len(up)-1; i < j; i, j = i+1, j-1 {
		up[i], up[j] = up[j], up[i]
	}
	return up
}

func TestAgainstModel(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			rng := seeded(t)
			x := open(t, Config{Policy: policy, CapacityPages: 2000, LogicalPages: 1500})
			m := model{blocks: map[uint64]Entry{}}
			const space = 1200
			var groups uint32 = 8
			for op := range 20_000 {
				n := rng.Uint64N(space)
				if rng.IntN(3) == 0 {
					n = rng.Uint64N(40) // near the root, where removing hurts
				}
				e := modelEntry(n)
				had, stored := m.blocks[n]
				switch rng.IntN(12) {
				case 0, 1, 2, 3:
					_, existed, err := x.Insert(e)
					require.NoError(t, err)
					require.Equal(t, stored, existed)
					if !stored {
						m.blocks[n] = e
					}
				case 4:
					_, ok := x.Remove(e.FP, had.Location)
					require.Equal(t, stored, ok)
					delete(m.blocks, n)
				case 5:
					groups++
					to := at(groups, n+1)
					require.Equal(t, stored, x.Move(e.FP, had.Location, to))
					if stored {
						had.Location = to
						m.blocks[n] = had
					}
				case 6:
					p := path(n)
					_, deepest := x.Lookup(len(p), func(i int) Fingerprint { return fpOf(p[i]) })
					x.TouchChain(deepest, rng.IntN(10))
				case 7:
					x.Touch(e.FP)
				case 8:
					got, ok := x.Resolve(e.FP)
					require.Equal(t, stored, ok)
					if ok {
						require.Equal(t, had.Location, got.Location)
						require.Equal(t, had.Depth, got.Depth)
						require.Equal(t, had.HasParent, got.HasParent)
						require.Equal(t, had.Tenant, got.Tenant)
						require.Equal(t, had.Namespace, got.Namespace)
						require.Equal(t, had.Pages, got.Pages)
					}
				case 9:
					if gone, ok := x.NextEvict(); ok {
						_, err := x.Evict(gone.FP, gone.Location)
						require.NoError(t, err)
						for k, v := range m.blocks {
							if v.Location == gone.Location {
								delete(m.blocks, k)
							}
						}
					}
				default:
					p := path(n)
					want := 0
					for want < len(p) && m.rooted(p[want]) {
						want++
					}
					got, deepest := x.Lookup(len(p), func(i int) Fingerprint { return fpOf(p[i]) })
					require.Equal(t, want, got)
					if want > 0 {
						list, err := x.ResolveChain(deepest, func(i int) Fingerprint { return fpOf(p[i]) }, 0, want, nil)
						require.NoError(t, err)
						for i := range list {
							require.Equal(t, m.blocks[p[i]].Location, list[i].Location)
						}
					}
				}
				if op%500 == 0 {
					require.NoError(t, x.Check())
				}
			}
			var rooted uint64
			for n := range m.blocks {
				if m.rooted(n) {
					rooted++
				}
			}
			s := x.Stats()
			require.EqualValues(t, len(m.blocks), s.Blocks)
			require.Equal(t, rooted, s.Rooted)
		})
	}
}

func TestTableGrowsThroughManySplits(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	x := open(t, Config{})
	const n = 200_000
	for i := range uint64(n) {
		insert(t, x, Entry{FP: fpOf(i), Opaque: true, Location: at(1, i+1), Pages: 1})
	}
	require.GreaterOrEqual(t, uint64(x.table.n)*loadNum, uint64(n)*loadDen)
	for range 2000 {
		e, ok := x.Resolve(fpOf(rng.Uint64N(n)))
		require.True(t, ok)
		require.NotZero(t, e.Location)
	}
	for i := range uint64(n) {
		if i%3 != 0 {
			_, ok := x.Remove(fpOf(i), at(1, i+1))
			require.True(t, ok)
		}
	}
	require.NoError(t, x.Check())
	top := x.top
	for i := range uint64(n / 3) {
		insert(t, x, Entry{FP: fpOf(n + i), Opaque: true, Location: at(1, n+i+1), Pages: 1})
	}
	require.Equal(t, top, x.top, "freed slots are used again")
}

// Lookups, restores, puts, deletes, cleaning and leases at the same time; the slots
// are on the Go heap here, so that the race detector sees them.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	x := open(t, Config{CapacityPages: 4000, heap: true})
	const chains, length, rounds = 40, 60, 150
	seeds := make([]uint64, 6)
	for i := range seeds {
		seeds[i] = rng.Uint64()
	}
	var wg sync.WaitGroup
	work := func(seed uint64, f func(rng *rand.Rand, base uint64)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, 0))
			for range rounds {
				f(rng, uint64(rng.IntN(chains))*1000)
			}
		}()
	}
	put := func(rng *rand.Rand, base uint64) {
		list := chain(base, length)
		for i := range list {
			list[i].Location = at(uint32(1+rng.IntN(8)), base+uint64(i)+1)
			if _, _, err := x.Insert(list[i]); err != nil {
				t.Error(err)
			}
		}
	}
	work(seeds[0], put)
	work(seeds[1], put)
	work(seeds[2], func(rng *rand.Rand, base uint64) {
		d, deepest := lookup(x, base, length)
		if d == 0 {
			return
		}
		id, err := x.Grant(LeaseRequest{Deepest: deepest, FP: fpOf(base + uint64(d) - 1), Bytes: 1, Until: second(1000)})
		if err == nil {
			if list, err := x.ResolveChain(deepest, func(k int) Fingerprint { return fpOf(base + uint64(k)) }, 0, d, nil); err == nil && len(list) != d {
				t.Errorf("%d of %d blocks", len(list), d)
			}
			x.TouchChain(deepest, d)
			x.Release(id)
		}
	})
	work(seeds[3], func(rng *rand.Rand, base uint64) {
		if rng.IntN(4) == 0 {
			x.Remove(fpOf(base+uint64(rng.IntN(length))), AnyLocation)
		}
		x.Resolve(fpOf(base))
		x.Stats()
	})
	work(seeds[4], func(rng *rand.Rand, base uint64) {
		var refs []Ref
		for i := range uint64(length) {
			if e, ok := x.Resolve(fpOf(base + i)); ok {
				refs = append(refs, Ref{FP: e.FP, Location: e.Location})
			}
		}
		for i, v := range x.Survivors(second(1), length, refs, nil) {
			if v == Drop {
				_, _ = x.Evict(refs[i].FP, refs[i].Location)
			} else if v != Gone {
				x.Move(refs[i].FP, refs[i].Location, refs[i].Location+1<<33)
			}
		}
	})
	work(seeds[5], func(rng *rand.Rand, base uint64) {
		x.Tick(second(rng.IntN(10)))
		x.SealGroup(uint32(1+rng.IntN(8)), 100, 0)
		_ = x.SetShare(uint16(rng.IntN(3)), int64(rng.IntN(3))*50*4096)
		if g, ok := x.PickVictim(nil); ok && rng.IntN(2) == 0 {
			x.Futile(g.Group, Futility(rng.IntN(3)))
		}
		_ = x.SetHint(second(0), fpOf(base), Hint{Until: second(5)})
	})
	wg.Wait()
	require.NoError(t, x.Check())
}
