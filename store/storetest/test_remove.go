package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func testDelete(t *testing.T, open Open) {
	e := start(t, open, Config{})
	remove := func(e *env, c *chain, from, to int) int {
		n, err := e.st.Delete(e.ctx, c.scope, c.keys[from:to])
		require.NoError(e, err)
		return n
	}
	e.run("says how many were there", func(e *env) {
		c := e.chain(e.space(hnd), 6).put(0, 4)
		require.Equal(e, 2, remove(e, c, 2, 6))
		require.Equal(e, 0, remove(e, c, 2, 6))
		require.Equal(e, 2, c.found())
	})
	e.run("a key named twice is deleted once", func(e *env) {
		c := e.chain(e.space(hnd), 1).put(0, 1)
		n, err := e.st.Delete(e.ctx, c.scope, []skep.Key{c.keys[0], c.keys[0]})
		require.NoError(e, err)
		require.Equal(e, 1, n)
	})
	e.run("descendants are hidden until the block is put again", func(e *env) {
		c := e.chain(e.space(hnd), 8).put(0, 8)
		require.Equal(e, 1, remove(e, c, 3, 4))
		require.Equal(e, 3, c.found())
		c.miss(3)
		c.miss(7)
		c.put(3, 4)
		require.Equal(e, 8, c.found())
		c.check(0, 8)
	})
	e.run("hidden blocks can be deleted", func(e *env) {
		c := e.chain(e.space(hnd), 4).put(1, 4)
		require.Equal(e, 2, remove(e, c, 2, 4))
		c.put(0, 1)
		require.Equal(e, 2, c.found())
	})
	e.run("other branches stay", func(e *env) {
		n := e.space(hnd)
		a, b := e.chain(n, 5).put(0, 5), e.chain(n, 5)
		copy(b.keys, a.keys[:3])
		b.put(3, 5)
		require.Equal(e, 1, remove(e, a, 3, 4))
		require.Equal(e, 3, a.found())
		require.Equal(e, 5, b.found())
		b.check(0, 5)
	})
	e.run("after a delete other bytes may be put", func(e *env) {
		c := e.chain(e.space(free), 1).put(0, 1)
		remove(e, c, 0, 1)
		c.free = 77
		c.put(0, 1)
		c.check(0, 1)
	})
}

func testPurge(t *testing.T, open Open) {
	e := start(t, open, Config{})
	// Two tenants with two namespaces each, of two models, and a salt in each.
	type world map[string]*chain
	build := func(e *env) world {
		a, b := specOf(hnd), specOf(hnd)
		w := world{}
		for _, s := range []struct{ name, tenant, model string }{
			{"a1", a.Tenant, a.Model}, {"a2", a.Tenant, b.Model}, {"b1", b.Tenant, a.Model}, {"b2", b.Tenant, b.Model},
		} {
			spec := a
			spec.Tenant, spec.Name, spec.Model = s.tenant, s.name, s.model
			w[s.name] = e.chain(e.open(spec), 3).put(0, 3)
			w[s.name+" salted"] = w[s.name].salted("salt").put(0, 3)
		}
		return w
	}
	for _, x := range []struct {
		name  string
		purge func(w world) skep.Purge
		gone  []string
	}{
		{"a tenant", func(w world) skep.Purge { return skep.Purge{Tenant: w["a1"].n.Tenant} }, []string{"a1", "a2", "a1 salted", "a2 salted"}},
		{"a model", func(w world) skep.Purge { return skep.Purge{Model: w["a1"].n.Model} }, []string{"a1", "b1", "a1 salted", "b1 salted"}},
		{"a namespace", func(w world) skep.Purge { return skep.Purge{Namespace: w["a1"].n.ID} }, []string{"a1", "a1 salted"}},
		{"a salt", func(w world) skep.Purge { return skep.Purge{Salt: &w["a1 salted"].scope} }, []string{"a1 salted"}},
		{"a salt nobody used", func(w world) skep.Purge {
			return skep.Purge{Salt: &skep.Scope{Namespace: w["a1"].n.ID, Salt: "other"}}
		}, nil},
		{"a tenant nobody knows", func(w world) skep.Purge { return skep.Purge{Tenant: "nobody"} }, nil},
		{"a model nobody knows", func(w world) skep.Purge { return skep.Purge{Model: "nothing"} }, nil},
	} {
		e.run("purging "+x.name, func(e *env) {
			w := build(e)
			require.NoError(e, e.st.Purge(e.ctx, x.purge(w)))
			gone := map[string]bool{}
			for _, name := range x.gone {
				gone[name] = true
			}
			for name, c := range w {
				if !gone[name] {
					require.Equal(e, 3, c.found(), name)
					c.check(0, 3)
					continue
				}
				require.Zero(e, c.found(), name)
				c.miss(0)
			}
			require.NoError(e, e.st.Purge(e.ctx, x.purge(w)), "purging again is not an error")
			// The namespaces stay, and what is put into them from now on is found.
			for name := range gone {
				c := w[name]
				require.Equal(e, c.n.ID, e.open(c.n.NamespaceSpec).ID, name)
				c.put(0, 1)
				require.Equal(e, 1, c.found(), "nothing purged comes back with its parent: %s", name)
				c.put(1, 3)
				c.check(0, 3)
			}
		})
	}
	e.run("leased blocks too", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		l := c.lease(time.Minute)
		require.NoError(e, e.st.Purge(e.ctx, skep.Purge{Namespace: c.n.ID}))
		require.Zero(e, c.found())
		require.NoError(e, e.st.Release(e.ctx, l.ID))
	})
}

func testHint(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("says how many are stored", func(e *env) {
		c := e.chain(e.space(hnd), 4).put(0, 2)
		for _, h := range []skep.Hint{
			{}, {NextUse: time.Second}, {Steps: 3, Program: "agent"}, {TTL: time.Hour}, {Pin: time.Second}, {Pin: skep.MaxPin},
		} {
			n, err := e.st.Hint(e.ctx, c.scope, c.keys, h)
			require.NoError(e, err)
			require.Equal(e, 2, n)
		}
		require.Equal(e, 2, c.found())
		c.check(0, 2)
		n, err := e.st.Hint(e.ctx, c.salted("s").scope, c.keys, skep.Hint{Pin: time.Second})
		require.NoError(e, err)
		require.Zero(e, n)
	})
	e.run("what was dropped is missed at worst, and can be put again", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 3)
		n, err := e.st.Hint(e.ctx, c.scope, c.keys[2:], skep.Hint{Drop: true})
		require.NoError(e, err)
		require.Equal(e, 1, n)
		require.Contains(e, []int{2, 3}, c.found())
		_, err = e.st.Put(e.ctx, c.request(2, 3))
		require.NoError(e, err)
		c.check(0, c.found())
	})
	e.run("pinned blocks can be deleted", func(e *env) {
		c := e.chain(e.space(hnd), 1).put(0, 1)
		_, err := e.st.Hint(e.ctx, c.scope, c.keys, skep.Hint{Pin: time.Hour})
		require.NoError(e, err)
		n, err := e.st.Delete(e.ctx, c.scope, c.keys)
		require.NoError(e, err)
		require.Equal(e, 1, n)
		require.Zero(e, c.found())
	})
	t.Run("a tenant's pins are capped, and past the cap nothing is pinned", func(t *testing.T) {
		size := sizeOf(pages4K, 0)
		e := start(t, open, Config{TenantPinBytes: int64(4 * size)})
		n := e.space(pages4K)
		a, b := e.chain(n, 3).put(0, 3), e.chain(n, 3).put(0, 3)
		hint := func(c *chain, h skep.Hint) error { _, err := e.st.Hint(e.ctx, c.scope, c.keys, h); return err }
		pin := func(c *chain) error { return hint(c, skep.Hint{Pin: time.Hour}) }
		require.NoError(e, errors.Join(pin(a), pin(a)), "a block is counted once")
		requireKind(e, skep.Quota, pin(b))
		b.keys = b.keys[:1]
		require.NoError(e, errors.Join(pin(b), pin(e.chain(e.space(pages4K), 3).put(0, 3))), "another tenant")
		more := e.chain(n, 3).put(0, 3)
		requireKind(e, skep.Quota, pin(more))
		require.NoError(e, errors.Join(hint(a, skep.Hint{Drop: true}), pin(more)), "what is dropped is pinned no more")
	})
}

func testAlloc(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("lends what was asked for", func(e *env) {
		for _, n := range []int64{1, 4095, 4096, 4097, 3 << 20} {
			m, err := e.st.Alloc(e.ctx, n)
			require.NoError(e, err)
			b := m.Bytes()
			require.EqualValues(e, n, len(b))
			copy(b, poison(len(b)))
			m.Release()
		}
	})
	e.run("puts and restores use it", func(e *env) {
		c := e.chain(e.space(pages4K), 2)
		m, err := e.st.Alloc(e.ctx, int64(2*c.size()))
		require.NoError(e, err)
		defer m.Release()
		r := c.request(0, 2)
		for i := range r.Blocks {
			to := m.Bytes()[i*c.size():][:c.size()]
			copy(to, r.Blocks[i].Parts[0].Bytes)
			r.Blocks[i].Parts[0].Bytes = to
		}
		e.put(r)
		copy(m.Bytes(), poison(2*c.size()))
		c.check(0, 2)
		for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Dest: skep.Destination{Memory: m.Bytes()}}) {
			require.NoError(e, p.Err)
		}
		require.Equal(e, append(c.payload(0), c.payload(1)...), m.Bytes())
	})
	e.run("pieces do not overlap", func(e *env) {
		var all []skep.Memory
		for i := range 8 {
			m, err := e.st.Alloc(e.ctx, 5000)
			require.NoError(e, err)
			for j := range m.Bytes() {
				m.Bytes()[j] = byte(i)
			}
			all = append(all, m)
		}
		for i, m := range all {
			for _, b := range m.Bytes() {
				require.EqualValues(e, i, b)
			}
			m.Release()
		}
	})
	e.run("more than there can be", func(e *env) {
		ctx, cancel := context.WithTimeout(e.ctx, 30*time.Millisecond)
		defer cancel()
		_, err := e.st.Alloc(ctx, 1<<50)
		requireKind(e, skep.NoMemory, err)
	})
}
