package wire

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/recall"
	"github.com/skepkv/skep/wire/server"
)

// recalled is a Store that counts the deletions that are recalls, and the others.
type recalled struct {
	*memstore.Store
	recalls, others atomic.Int64
}

func (r *recalled) note(ctx context.Context) {
	if recall.Is(ctx) {
		r.recalls.Add(1)
	} else {
		r.others.Add(1)
	}
}

func (r *recalled) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	r.note(ctx)
	return r.Store.Delete(ctx, sc, keys)
}

func (r *recalled) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	r.note(ctx)
	return r.Store.DeleteNamespace(ctx, id)
}

// A server is told which deletions are recalls, unless it is from before there were such.
func TestARecallIsTold(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		st := &recalled{Store: newMemstore(storetest.Config{}).(*memstore.Store)}
		r := serve(t, "unix", st, server.Options{})
		o := r.options()
		o.Conns = 1
		c := r.dial(t, o)
		ch := chainOf(t, c, "a", 3)
		if old {
			x, err := c.conn(t.Context(), 0)
			require.NoError(t, err)
			x.hi.Features &^= frames.FeatureRecall // as if the Welcome had said so
		}
		for _, ctx := range []context.Context{t.Context(), recall.Mark(t.Context())} {
			_, err := c.Delete(ctx, ch.Scope, ch.Keys)
			require.NoError(t, err)
		}
		require.NoError(t, c.DeleteNamespace(recall.Mark(t.Context()), ch.Namespace))
		want := int64(2)
		if old {
			want = 0
		}
		require.Equal(t, want, st.recalls.Load())
		require.Equal(t, 3-want, st.others.Load())
	}
}
