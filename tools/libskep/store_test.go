package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A call that may take an hour, or for ever, may take an hour, and not the 30 s of one that does not say.
func TestALongTimeoutIsNotAShortOne(t *testing.T) {
	t.Parallel()
	for _, ms := range []int64{3_599_999, 3_600_000, 1 << 62} {
		ctx, cancel := timeout(ms)
		until, _ := ctx.Deadline()
		require.True(t, time.Now().Add(patience).Before(until), "%d ms", ms)
		cancel()
	}
}

// opening is a Store that opens whatever it is asked for.
type opening struct{ skep.Store }

func (opening) OpenNamespace(_ context.Context, s skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return skep.NamespaceInfo{NamespaceSpec: s, ID: 1}, nil
}

// A namespace without a tenant is of the credential's, and of nobody's as long as no server has said whose that is.
func TestATenantThatIsNotKnownIsNotTheDefault(t *testing.T) {
	t.Parallel()
	o, err := open(t.Context(), `{"connect": "unix:/nonesuch/s", "lazy": true}`)
	require.NoError(t, err)
	defer o.close()
	o.Store = opening{o.Store}
	_, err = o.openNamespace(t.Context(), alone)
	require.ErrorIs(t, err, skep.Unavailable)
}
