package devlog

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// logOfOne is a log of devices with one namespace.
func logOfOne(t *testing.T) (*Log, *namespaces.Namespace) {
	t.Helper()
	l := New(Config{Names: namespaces.NewTable([16]byte{1}),
		Root: watermark.New(func() catalog.StoreState { return catalog.StoreState{} })})
	l.Root.Load(catalog.StoreState{})
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Class: skep.Durable, Copies: 1,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16}}
	ns, err := l.Names.Add(skep.NamespaceInfo{ID: 1, NamespaceSpec: spec}, 1)
	require.NoError(t, err)
	return l, ns
}

// That a namespace is deleted is said with a number of now. What else stands in the same intent stays as it was: the
// number of a salt's purge is the salt's epoch.
func TestOnlyADeletionIsSaidWithANumberOfNow(t *testing.T) {
	t.Parallel()
	l, ns := logOfOne(t)
	other := ns.Instance + 1000
	was := l.Root.Next()
	deleted := *ns.Entry(was)
	deleted.Deleted, deleted.Instance, deleted.Info.ID = true, other, 1000
	others := []any{
		segment.Purge{Seq: was, Covers: was, Instance: ns.Instance, Salted: true, SaltTag: segment.SaltTag{1}},
		segment.Purge{Covers: was, Instance: ns.Instance, Salted: true, SaltTag: segment.SaltTag{2}},
		segment.Purge{Seq: was, Covers: was, Instance: other + 1},
		segment.Tombstone{Seq: was, Covers: was, Instance: ns.Instance, Key: skep.Key{1}},
		*ns.Entry(was),
	}
	deletedAt := func(seq uint64) []byte {
		deleted.Seq = seq
		return entriesOf(t, append([]any{deleted, segment.Purge{Seq: seq, Covers: seq, Instance: other}}, others...)...)
	}

	got, err := l.ended(deletedAt(was))
	require.NoError(t, err)
	var now uint64
	for e := range segment.Entries(got) {
		if v, err := segment.DecodeNamespace(e.Body); e.Kind == segment.KindNamespace && err == nil && v.Deleted {
			now = v.Seq
		}
	}
	require.Greater(t, now, was)
	require.Equal(t, deletedAt(now), got)
}

// A namespace that is no more is not said to be one, whatever else an intent says. One that is being made is.
func TestWhatIsNoMoreIsNotSaid(t *testing.T) {
	t.Parallel()
	l, ns := logOfOne(t)
	gone := *ns.Entry(l.Root.Next())
	gone.Instance, gone.Info.ID = ns.Instance+1000, 1000
	stone := segment.Tombstone{Seq: 1, Covers: 1, Instance: ns.Instance, Key: skep.Key{1}}

	got, err := l.ended(entriesOf(t, gone, *ns.Entry(1), stone))
	require.NoError(t, err)
	require.Equal(t, entriesOf(t, *ns.Entry(1), stone), got)
	got, err = l.ended(entriesOf(t, gone))
	require.NoError(t, err)
	require.Empty(t, got)
}

// entriesOf are log entries of list.
func entriesOf(t testing.TB, list ...any) []byte {
	var w segment.LogWriter
	for _, e := range list {
		var err error
		switch e := e.(type) {
		case segment.Namespace:
			err = w.Namespace(&e)
		case segment.Purge:
			err = w.Purge(&e)
		case segment.Tombstone:
			err = w.Tombstone(&e)
		}
		require.NoError(t, err)
	}
	return w.Bytes()
}
