package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skepkv/skep"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// checkCache compares what the cache counts with what it holds, and every rule of
// doc.go that can be seen from inside.
func checkCache(t *testing.T, c *Cache) {
	t.Helper()
	s := c.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	var bytes, dirty, pinned int64
	all := map[*entry]bool{}
	var entries []*entry
	for k, e := range c.mu.blocks {
		for ; e != nil; e = e.also {
			require.Equal(t, k, e.id.Key)
			require.Same(t, e, c.findLocked(e.id), "each part once")
			entries = append(entries, e)
		}
	}
	require.EqualValues(t, len(entries), c.mu.entries)
	for _, e := range entries {
		require.True(t, e.linked)
		bytes += e.charged
		all[e] = true
		if e.dirty {
			dirty += e.charged
		}
		require.Equal(t, len(e.handles) > 0, slices.Contains(c.mu.pinned, e))
		if e.dirty {
			require.Equal(t, -1, e.node.pos, "dirty entries are no candidates")
		} else if len(e.handles) == 0 {
			require.GreaterOrEqual(t, e.node.pos, 0, "every evictable entry is a candidate")
		}
	}
	for at, e := range c.mu.pinned {
		require.Equal(t, at, e.pinnedAt)
		pinned += e.charged
		all[e] = true
		for i, h := range e.handles {
			require.Equal(t, i, h.at)
		}
	}
	buffers := 0
	for e := range all {
		for _, b := range e.bufs {
			require.Same(t, e, b.owner)
			require.Same(t, b, c.mu.pages[b.page])
			require.Equal(t, BudgetCache, b.Budget())
			require.NotZero(t, refs(b.state.Load()))
			buffers++
		}
	}
	require.Len(t, c.mu.pages, buffers)
	for i, n := range c.mu.ranking.heap {
		require.Equal(t, i, n.pos)
		require.True(t, n.entry.linked)
	}
	require.Equal(t, bytes, s.Bytes)
	require.Equal(t, dirty, s.DirtyBytes)
	require.Equal(t, pinned, s.PinnedBytes)
	require.LessOrEqual(t, s.Bytes, s.Budget)
	require.LessOrEqual(t, c.arena.Stats().CacheUsed, s.Budget)
}

// Random operations against a model that knows what every value must be. The
// cache may forget, but never what is dirty or pinned, and it never lies.
func TestCacheProperties(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{CostAware, LRU} {
		rng := newRand(t)
		a := newArena(t, Options{IO: 256 * kib, Cache: 512 * kib, MaxBlock: 64 * kib})
		now := time.Unix(0, 0)
		c := newCache(t, a, CacheOptions{Policy: policy, Now: func() time.Time { return now }})
		type value struct {
			version Version
			fill    byte
			length  int
			dirty   bool
		}
		type pin struct {
			*Handle
			value
			spill bool
		}
		model := map[ID]value{}
		var pins []pin
		var reading []*Buffer
		verify := func(p pin) {
			got, err := read(p.Handle)
			if errors.Is(err, ErrRevoked) {
				require.False(t, now.Before(p.Deadline()), "revoked before its deadline")
				require.False(t, p.spill, "there was a place for the bytes")
				return
			}
			require.NoError(t, err)
			require.Equal(t, bytes.Repeat([]byte{p.fill}, p.length), got)
		}
		for step := range 8000 {
			name := id(rng.IntN(60))
			want, known := model[name]
			switch op := rng.IntN(20); {
			case op < 7:
				v := value{fill: byte(step), length: 1 + rng.IntN(1<<(8+rng.IntN(10))), dirty: rng.IntN(16) == 0}
				item := Item{ID: name, Length: int64(v.length), Dirty: v.dirty, Replace: rng.IntN(2) == 0, Uses: rng.Uint32N(4)}
				var err error
				if v.version, err = tryPut(c, item, v.fill); err == nil {
					model[name] = v
				} else {
					require.True(t, errors.Is(err, skep.NoMemory) || errors.Is(err, ErrExists), err)
				}
			case op < 11:
				p := pin{value: want, spill: rng.IntN(2) == 0}
				opts := GetOptions{Deadline: now.Add(time.Duration(rng.IntN(50)))}
				if p.spill {
					opts.Spill = make([]byte, want.length)
				}
				var ok bool
				if p.Handle, ok = c.GetWith(name, opts); ok {
					require.True(t, known)
					require.EqualValues(t, want.length, p.Len())
					pins = append(pins, p)
				}
			case op < 16 && len(pins) > 0:
				i := rng.IntN(len(pins))
				verify(pins[i])
				if len(pins) > 30 || op < 13 {
					pins[i].Release()
					pins[i] = pins[len(pins)-1]
					pins = pins[:len(pins)-1]
				}
			case op == 16 && known:
				if c.MarkClean(name, want.version) {
					require.True(t, want.dirty)
					want.dirty = false
					model[name] = want
				}
			case op == 17 && known:
				c.Remove(name)
				delete(model, name)
			case op == 18:
				if b, err := a.TryAlloc(64*kib, BudgetIO); err == nil {
					reading = append(reading, filled(b, 0xaa))
				}
			case op == 19 && len(reading) > 0:
				reading[0].Release()
				reading = reading[1:]
			}
			for name, v := range model {
				require.False(t, v.dirty && !c.Has(name), "a dirty value was lost")
			}
			now = now.Add(1)
			if step%16 == 0 {
				checkCache(t, c)
			}
		}
		s := c.Stats()
		t.Logf("%+v", s)
		require.Positive(t, s.Evictions)
		require.Positive(t, s.Revocations+s.Spills)
		for _, p := range pins {
			verify(p)
			p.Release()
		}
		for _, b := range reading {
			b.Release()
		}
		checkCache(t, c)
		c.Close()
		assert.Zero(t, a.Stats().Buffers)
		assert.Zero(t, a.Stats().Misuse)
	}
}

// Readers, writers, removers and I/O at once, each value carrying its own name:
// nobody ever reads another's bytes.
func TestCacheUnderContention(t *testing.T) {
	t.Parallel()
	rounds := 1500
	if testing.Short() {
		rounds = 300
	}
	a := newArena(t, Options{IO: 512 * kib, Cache: 512 * kib, MaxBlock: 64 * kib})
	c := newCache(t, a, CacheOptions{HandleLife: time.Microsecond})
	seed := newRand(t).Uint64()
	var hits, revoked, waited atomic.Int64
	var users sync.WaitGroup
	for u := range 8 {
		users.Go(func() {
			rng := seededRand(seed + uint64(u))
			var late []func() // what is held too long, oldest first
			for range rounds {
				if len(late) > 8 {
					late[0]()
					late = late[1:]
				}
				name := rng.IntN(40)
				switch h, ok := c.Get(id(name)); {
				case ok:
					hits.Add(1)
					check := func() {
						err := h.Read(func(bufs [][]byte) error {
							for _, b := range bufs {
								if got := binary.LittleEndian.Uint32(b); got != uint32(name) {
									t.Errorf("read %d's bytes as %d's", got, name)
								}
							}
							return nil
						})
						if errors.Is(err, ErrRevoked) {
							revoked.Add(1)
						}
					}
					check()
					if rng.IntN(8) == 0 {
						if bufs, err := h.Share(); err == nil {
							late = append(late, func() {
								assert.Equal(t, uint32(name), binary.LittleEndian.Uint32(bufs[0].Bytes()))
								for _, b := range bufs {
									b.Release()
								}
							})
						}
					}
					if rng.IntN(6) == 0 {
						late = append(late, check, h.Release)
					} else {
						h.Release()
					}
				default:
					// Some sizes want a window that the cache must clear.
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
					bufs, err := a.AllocVec(ctx, a.Split((1+rng.IntN(25))*4*kib), BudgetIO)
					cancel()
					if err != nil {
						waited.Add(1)
						continue
					}
					n := 0
					for _, b := range bufs {
						assert.NoError(t, b.Lend())
						binary.LittleEndian.PutUint32(b.Padded(), uint32(name))
						n += b.Len()
						b.Return()
					}
					if _, err := c.Put(Item{ID: id(name), Bufs: bufs, Length: int64(n), Replace: rng.IntN(2) == 0}); err != nil {
						for _, b := range bufs {
							b.Release()
						}
					}
				}
				if rng.IntN(50) == 0 {
					c.Remove(id(rng.IntN(40)))
				}
			}
			for _, f := range late {
				f()
			}
		})
	}
	users.Wait()
	checkCache(t, c)
	t.Logf("hits %d, revoked %d, ended waits %d, %+v", hits.Load(), revoked.Load(), waited.Load(), c.Stats())
	assert.Positive(t, hits.Load())
	assert.Zero(t, a.Stats().IOUsed)
	assert.Zero(t, a.Stats().Misuse)
}

func BenchmarkCacheGet(b *testing.B) {
	a := newArena(b, Options{IO: 1 * mib, Cache: 256 * mib, SmallPages: true})
	c := newCache(b, a, CacheOptions{})
	const entries = 60_000
	for name := range entries {
		put(b, c, name, 1, 0)
	}
	for name, among := range map[string]int{"hot": 100, "cold": entries} { // in and out of the CPU's caches
		b.Run(name, func(b *testing.B) {
			rng := seededRand(3)
			b.ReportAllocs()
			for b.Loop() {
				h, ok := c.Get(id(rng.IntN(among)))
				if !ok {
					b.Fatal("missing")
				}
				h.Release()
			}
		})
	}
	b.Run("read", func(b *testing.B) {
		rng := seededRand(3)
		nothing := func([][]byte) error { return nil }
		b.ReportAllocs()
		for b.Loop() {
			h, _ := c.Get(id(rng.IntN(entries)))
			_ = h.Read(nothing)
			h.Release()
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			rng := seededRand(3)
			for pb.Next() {
				if h, ok := c.Get(id(rng.IntN(entries))); ok {
					h.Release()
				}
			}
		})
	})
}

func BenchmarkCachePutEvict(b *testing.B) {
	a := newArena(b, Options{IO: 16 * mib, Cache: 240 * mib, SmallPages: true})
	c := newCache(b, a, CacheOptions{})
	for _, n := range []int{4 * kib, 2 * mib} {
		b.Run(sizeName(n), func(b *testing.B) {
			c.Drop(func(ID) bool { return true })
			b.ReportAllocs()
			name := 0
			for b.Loop() {
				buf, err := a.TryAlloc(n, BudgetIO)
				if err != nil {
					b.Fatal(err)
				}
				name++
				if _, err := c.Put(Item{ID: id(name), Bufs: []*Buffer{buf}, Length: int64(n), Replace: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
