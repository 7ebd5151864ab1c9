package clustermap

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// changing is a map that commands change.
type changing struct {
	*testing.T
	m *Map
}

// downed is a map of which node c is down.
func downed(t *testing.T) *changing {
	x := &changing{t, agreed(t)}
	require.NoError(t, x.apply(Command{Do: SetState, Name: "c", State: Down}))
	return x
}

func (x *changing) apply(c Command) error {
	next, err := x.m.Apply(&c)
	if err == nil {
		x.m = next
	}
	return err
}

// misses has the node that is down miss what is deleted in a namespace: a durable one is deleted whole.
func (x *changing) misses(tenant, name string, class skep.Class) error {
	return x.apply(Command{Do: Miss, Tenant: tenant, Name: name, Spares: class == skep.Cache})
}

// loses says whether it loses a namespace whose keys are in chains.
func (x *changing) loses(tenant, name string, class skep.Class) bool {
	return x.m.Down()[0].Missed.Loses(&skep.NamespaceSpec{Tenant: tenant, Name: name, Class: class, Chained: true})
}

// A tenant of which more is missed than its share loses all that may be lost of it. Another tenant loses nothing for
// that, and no durable namespace is lost that was not deleted.
func TestATenantThatMissesMuchCostsOthersNothing(t *testing.T) {
	t.Parallel()
	x := downed(t)
	require.NoError(t, x.misses("other", "n", skep.Cache))
	for i := range 33 {
		require.Equal(t, i > MaxMissedOfTenant, x.loses("t", "unnamed", skep.Cache), "after %d", i)
		require.NoError(t, x.misses("t", fmt.Sprint(i), skep.Cache))
	}
	for _, c := range []struct {
		tenant, name string
		class        skep.Class
		lost         bool
	}{
		{"t", "7", skep.Cache, true}, {"t", "unnamed", skep.Cache, true}, {"t", "7", skep.Durable, false},
		{"other", "n", skep.Cache, true}, {"other", "7", skep.Cache, false}, {"third", "7", skep.Cache, false},
	} {
		require.Equal(t, c.lost, x.loses(c.tenant, c.name, c.class), "%+v", c)
	}
	require.Len(t, x.m.Down()[0].Missed.Spaces, 2)
	for i := range MaxMissedOfTenant {
		require.NoError(t, x.misses("t", fmt.Sprint("d", i), skep.Durable))
		require.True(t, x.loses("t", fmt.Sprint("d", i), skep.Durable))
	}
	require.ErrorIs(t, x.misses("t", "one more", skep.Durable), skep.Unavailable)
	require.NoError(t, x.misses("other", "one more", skep.Durable))
	require.NoError(t, x.misses("t", "", skep.Durable), "all of the tenant")
	require.Equal(t, []Space{{"other", "n", true}, {"other", "one more", false}, {Tenant: "t"}},
		x.m.Down()[0].Missed.Spaces)
	require.True(t, x.loses("t", "one more", skep.Durable))
}

// A node that is down is remembered so many namespaces. Those of the tenants that have several are gathered first; then
// all of class Cache is lost, and what may not be lost is refused.
func TestWhatANodeMissesIsBounded(t *testing.T) {
	t.Parallel()
	x := downed(t)
	for i := range MaxMissed {
		require.NoError(t, x.misses(fmt.Sprint("t", i/4), fmt.Sprint(i), skep.Cache))
	}
	require.False(t, x.loses("t0", "unnamed", skep.Cache))
	require.NoError(t, x.misses("u", "n", skep.Cache))
	require.True(t, x.loses("t0", "unnamed", skep.Cache), "it has as many as others, and is the first")
	require.False(t, x.loses("t1", "unnamed", skep.Cache))
	for i := range MaxMissed {
		require.NoError(t, x.misses(fmt.Sprint("u", i), "n", skep.Cache))
	}
	require.True(t, x.loses("any", "n", skep.Cache))
	require.False(t, x.loses("any", "n", skep.Durable))

	x = downed(t)
	for i := range MaxMissed {
		require.NoError(t, x.misses(fmt.Sprint("t", i/MaxMissedOfTenant), fmt.Sprint(i), skep.Durable))
	}
	for range 2 {
		full := x.m
		require.ErrorIs(t, x.misses("u", "n", skep.Durable), skep.Unavailable)
		require.Same(t, full, x.m)
		require.NoError(t, x.misses("u", "n", skep.Cache))
	}
	missed := x.m.Down()[0].Missed
	require.Len(t, missed.Spaces, MaxMissed)
	require.True(t, x.loses("t0", "7", skep.Durable))
	require.True(t, missed.Spared)
	require.False(t, (*Missed)(nil).Loses(&skep.NamespaceSpec{}))
	require.True(t, (&Missed{}).Loses(&skep.NamespaceSpec{}), "it may have been written over")
	require.False(t, (&Missed{}).Loses(&skep.NamespaceSpec{Chained: true}))
	bad := *x.m
	bad.Nodes = slices.Clone(bad.Nodes)
	bad.Nodes[len(bad.Nodes)-1].State = Out
	require.ErrorIs(t, bad.Validate(), skep.Invalid)
}

// The names of what is missed take a bounded part of the map, however long they are. Names of nodes and namespaces
// leave it: a map that is as large as it may be has nodes that are down and miss something, and are up again.
func TestAFullMapHasRoomForWhatIsMissed(t *testing.T) {
	t.Parallel()
	m := agreed(t)
	x := &changing{t, m}
	long := func(c string, i int) string { return strings.Repeat(c, skep.MaxNameSize-3) + fmt.Sprintf("%03d", i) }
	spec := m.Namespaces[0].NamespaceSpec
	var err error
	for i := 0; err == nil; i++ {
		spec.Name = long("&", i) // six bytes each, as it is written
		err = x.apply(Command{Do: OpenNamespace, Spec: &spec})
	}
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "map's size in bytes")
	for _, name := range []string{"b", "c"} {
		require.NoError(t, x.apply(Command{Do: SetState, Name: name, State: Down}))
	}
	refused := 0
	for i := range 2 * MaxMissed {
		if err := x.misses(long("<", i/2), long("<", i), skep.Durable); err != nil {
			require.ErrorIs(t, err, skep.Unavailable)
			require.ErrorContains(t, err, fmt.Sprint(MaxMissedBytes))
			refused++
		}
	}
	require.Positive(t, refused)
	for i := range 2 * MaxMissed {
		require.NoError(t, x.misses(long(">", i/2), long(">", i), skep.Cache))
	}
	b, err := x.m.Encode()
	require.NoError(t, err)
	require.LessOrEqual(t, len(b), MaxBytes)
	for _, n := range x.m.Down() {
		require.True(t, n.Missed.Spared)
		require.True(t, n.Missed.Loses(&skep.NamespaceSpec{Tenant: long("<", 0), Name: long("<", 0), Class: skep.Durable}))
		require.NoError(t, x.apply(Command{Do: Return, Name: n.Name, Lost: x.m.Epoch}))
	}
	require.Empty(t, x.m.Down())
}

// What holds a namespace's clustered contexts goes with it.
func TestClusteredContextsAreMissedWithTheirNamespace(t *testing.T) {
	t.Parallel()
	x := downed(t)
	require.NoError(t, x.misses("t", "n", skep.Durable))
	for name, lost := range map[string]bool{
		"n": true, "n" + skep.SparseMark: true, "n" + skep.SparseMark + "-128": true,
		"n" + skep.SparseMark + "2": false, "m" + skep.SparseMark: false, "nn": false,
	} {
		require.Equal(t, lost, x.loses("t", name, skep.Durable), name)
	}
	require.False(t, x.loses("u", "n"+skep.SparseMark, skep.Durable))
	epoch := x.m.Epoch
	require.NoError(t, x.misses("t", "n"+skep.SparseMark, skep.Durable))
	require.Equal(t, epoch, x.m.Epoch, "it is remembered already")
}

// A node that is out and does not run may be said to be down. When it has returned it is out, and gets nothing.
func TestANodeThatWasOutIsOutAgain(t *testing.T) {
	t.Parallel()
	x := &changing{t, agreed(t)}
	for _, state := range []State{Out, Down} {
		require.NoError(t, x.apply(Command{Do: SetState, Name: "c", State: state}))
	}
	require.NoError(t, x.misses("t", "n", skep.Cache))
	require.ErrorIs(t, x.apply(Command{Do: Return, Name: "c"}), skep.Conflict, "it has not lost it yet")
	require.NoError(t, x.apply(Command{Do: Return, Name: "c", Lost: x.m.Epoch}))
	n, err := x.m.Node("c")
	require.NoError(t, err)
	require.Equal(t, Out, n.State)
	require.Nil(t, n.Missed)
	require.NoError(t, x.apply(Command{Do: SetState, Name: "c", State: Up}))
}
