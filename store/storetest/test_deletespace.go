package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testDeleteNamespace: what is deleted is gone, whoever has its number, its name or something of it.
func testDeleteNamespace(t *testing.T, open Open) {
	e := start(t, open, Config{TenantNamespaces: 3})
	e.run("its blocks, its name and its number are gone", func(e *env) {
		c, other := e.chain(e.space(hnd), 4).put(0, 4), e.chain(e.space(hnd), 4).put(0, 4)
		salted := c.salted("salt").put(0, 4)
		require.NoError(e, e.st.DeleteNamespace(e.ctx, c.n.ID))
		for name, call := range e.everyCall(c) {
			switch name {
			case "find namespace", "lookup", "want", "put", "begin", "restore", "delete", "purge", "hint", "count blocks", "list keys", "put sidecar", "sidecar":
				requireKind(e, skep.NotFound, call(e.ctx), name)
			}
		}
		_, err := e.st.Lookup(e.ctx, &skep.LookupRequest{Scope: salted.scope, Keys: salted.keys})
		requireKind(e, skep.NotFound, err, "under a salt")
		requireKind(e, skep.NotFound, e.st.DeleteNamespace(e.ctx, c.n.ID), "a second time")
		list, err := e.st.Namespaces(e.ctx)
		require.NoError(e, err)
		for _, n := range list {
			require.NotEqual(e, c.n.ID, n.ID)
		}
		list, err = e.st.NamespacesOf(e.ctx, c.n.Tenant)
		require.NoError(e, err)
		require.Empty(e, list)
		_, err = e.st.FindNamespace(e.ctx, c.n.ID)
		requireKind(e, skep.NotFound, err, "by its number")
		require.Equal(e, 4, other.found())
		other.check(0, 4)
	})
	e.run("its name may be used again, for something else too", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 3)
		require.NoError(e, e.st.DeleteNamespace(e.ctx, c.n.ID))
		spec := c.n.NamespaceSpec
		spec.Model = "another"
		again := e.open(spec)
		require.NotEqual(e, c.n.ID, again.ID, "a number is not given out twice")
		d := e.chain(again, 3)
		copy(d.keys, c.keys)
		require.Zero(e, d.found())
		d.put(0, 1)
		require.Equal(e, 1, d.found(), "nothing comes back with its parent")
		d.put(1, 3)
		d.check(0, 3)
	})
	e.run("its clustered contexts go with it", func(e *env) {
		n := e.space(hnd)
		spec := n.NamespaceSpec
		spec.Name += skep.SparseMark
		c := e.chain(e.open(spec), 2).put(0, 2)
		require.NoError(e, e.st.DeleteNamespace(e.ctx, n.ID))
		_, err := e.st.FindNamespace(e.ctx, c.n.ID)
		requireKind(e, skep.NotFound, err, "of the contexts")
	})
	e.run("leases, block writers and sessions of it end", func(e *env) {
		c := e.chain(e.space(pages4K), 5).put(0, 4)
		l := c.lease(time.Minute)
		w := c.begin(4)
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(4)))
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys[:4]}}})
		require.NoError(e, err)
		require.NoError(e, e.st.DeleteNamespace(e.ctx, c.n.ID))
		_, err = w.Commit(e.ctx, skep.AckCommitted)
		requireKind(e, skep.NotFound, err, "block writer")
		require.NoError(e, w.Abort(e.ctx))
		require.NoError(e, e.st.Release(e.ctx, l.ID))
		require.NoError(e, s.Close(e.ctx))
	})
	e.run("it is told", func(e *env) {
		c := e.chain(e.space(hnd), 1).put(0, 1)
		r := e.follow(skep.Cursor{}, false)
		require.NoError(e, e.st.DeleteNamespace(e.ctx, c.n.ID))
		r.until(skep.EventPurged, c.n.ID)
	})
	e.run("a tenant has so many namespaces, and gets one back for each that it deletes", func(e *env) {
		spec := specOf(hnd)
		first := e.open(spec)
		for _, name := range []string{"second", "third"} {
			spec.Name = name
			e.open(spec)
		}
		spec.Name = "fourth"
		_, err := e.st.OpenNamespace(e.ctx, spec)
		requireKind(e, skep.Quota, err, "one too many")
		require.Equal(e, first.ID, e.open(first.NamespaceSpec).ID, "what is there is opened as before")
		e.open(specOf(hnd)) // another tenant's
		require.NoError(e, e.st.DeleteNamespace(e.ctx, first.ID))
		e.open(spec)
	})
}
