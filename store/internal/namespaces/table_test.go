package namespaces

import (
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func info(id skep.NamespaceID, tenant, name string) skep.NamespaceInfo {
	return skep.NamespaceInfo{ID: id, NamespaceSpec: skep.NamespaceSpec{Tenant: tenant, Name: name, Shape: skep.Shape{Kind: skep.Opaque}}}
}

func add(t *testing.T, n *Table, id skep.NamespaceID, tenant, name string, instance uint32) *Namespace {
	t.Helper()
	ns, err := n.Add(info(id, tenant, name), instance)
	require.NoError(t, err)
	return ns
}

// What is taken out leaves nothing, and what stays is found by its number, its name and its instance.
func TestWhatIsTakenOutLeavesNothing(t *testing.T) {
	t.Parallel()
	n := NewTable([16]byte{1})
	a, b := add(t, n, 1, "t", "a", 10), add(t, n, 2, "t", "b", 11)
	c := add(t, n, 3, "u", "c", 12)
	require.False(t, n.Alone())
	require.Equal(t, 2, n.CountOf("t"))
	require.Equal(t, []*Namespace{a, b}, n.OfTenant("t"))
	require.Same(t, a, n.Get(1))
	require.Same(t, b, n.Named("t", "b"))
	require.Same(t, c, n.Of(12))
	require.Equal(t, a.Tenant, b.Tenant)
	require.Equal(t, []string{"t", "u"}, n.Tenants())

	n.KillTag(SaltTag{12, Tag{1}}, 5)
	n.Remove(c)
	require.Nil(t, n.Get(3))
	require.Nil(t, n.Named("u", "c"))
	require.True(t, n.Dead(12, Tag{}))
	require.True(t, n.Alone())
	require.Equal(t, 2, n.Len())
	require.Equal(t, 2, n.byName.len())
	require.Equal(t, 2, n.byInstance.len())
	n.ForgetSalts()
	require.Empty(t, maps.Collect(n.DeadSalts()))
	require.Empty(t, maps.Collect(n.PurgedSalts()))

	renewed := *a
	renewed.Instance = 13
	n.Enter(&renewed)
	require.Same(t, a, n.Get(1), "it is entered and not published")
	require.False(t, n.Dead(10, Tag{}))
	require.False(t, n.Dead(13, Tag{}))
	n.Supersede(a, &renewed)
	require.Same(t, &renewed, n.Get(1))
	require.True(t, n.Dead(10, Tag{}), "what carries the old instance is dead")
	require.Equal(t, 2, n.byInstance.len())
	require.Equal(t, 2, n.CountOf("t"), "a renewed one is not another")
}

// A purge gives a salt another tag: what has the old one is dead, and keys under the salt are other fingerprints.
func TestAPurgedSalt(t *testing.T) {
	t.Parallel()
	n := NewTable([16]byte{1})
	ns := add(t, n, 1, "t", "a", 10)
	sc := skep.Scope{Namespace: 1, Salt: "pepper"}
	_, was, err := n.Resolve("test", sc)
	require.NoError(t, err)
	require.Equal(t, n.TagAt(10, "pepper", 0), was)
	first := SaltTag{10, was}
	n.KillTag(first, 7)
	_, is, err := n.Resolve("test", sc)
	require.NoError(t, err)
	require.NotEqual(t, was, is)
	require.Equal(t, n.TagAt(10, "pepper", 7), is)
	require.True(t, n.Dead(10, was))
	require.False(t, n.Dead(10, is))
	require.False(t, n.Dead(10, Tag{}), "blocks without a salt stay")
	require.NotEqual(t, n.Fingerprint(10, was, skep.Key{1}), n.Fingerprint(10, is, skep.Key{1}))
	require.NotEqual(t, n.Fingerprint(10, is, skep.Key{1}), NewTable([16]byte{2}).Fingerprint(10, is, skep.Key{1}), "the secret is in it")

	n.KillTag(SaltTag{10, is}, 0)
	n.KillTag(first, 9)
	require.Equal(t, map[SaltTag]uint64{first: 9, {10, is}: 0}, maps.Collect(n.DeadSalts()))
	require.Equal(t, map[SaltTag]uint64{first: 9}, maps.Collect(n.PurgedSalts()))
	n.ForgetTag(SaltTag{10, is})
	require.Equal(t, map[SaltTag]uint64{first: 9}, maps.Collect(n.DeadSalts()))
	require.Equal(t, []uint32{10}, n.WithContexts(ns))
}

// A name that is known must agree, tenants are bounded, and what is not there is said.
func TestWhatTheTableRefuses(t *testing.T) {
	t.Parallel()
	n := NewTable([16]byte{1})
	ns := add(t, n, 1, "t", "a", 10)
	got, err := n.Known(ns.Info.NamespaceSpec)
	require.NoError(t, err)
	require.Equal(t, ns.Info, got)
	other := ns.Info.NamespaceSpec
	other.Model = "another"
	_, err = n.Known(other)
	var e *skep.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, skep.Conflict, e.Kind)
	require.Equal(t, "model", e.Field)
	_, _, err = n.Resolve("test", skep.Scope{Namespace: 2})
	require.ErrorIs(t, err, skep.NotFound)

	for i := len(n.Tenants()); i < MaxTenants; i++ {
		n.TenantNumber(strconv.Itoa(i))
	}
	_, err = n.Prepare(info(2, "one too many", "a"), 11)
	require.Equal(t, skep.Invalid, skep.KindOf(err))
	_, err = n.Prepare(info(2, "t", "b"), 11)
	require.NoError(t, err, "a tenant that is there")
	require.Equal(t, 1, n.Len())
}
