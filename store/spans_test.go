package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/observe"
)

// Calls whose context is traced show under it what they did, one after the other.
func TestSpans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	o := small(t.TempDir())
	o.CacheBytes = -1
	s := openTest(t, o)
	sc := openSpace(t, s, "chain", skep.Cache, 1, true)
	keys := chainKeys(1, 3)
	ctx, above := tracer.Start(testContext(t), "the caller's")
	_, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: keys[0], Parts: []skep.Part{{Bytes: make([]byte, 9000)}}}}})
	require.NoError(t, err)
	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	require.Equal(t, 1, found.Blocks)
	list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: keys[:1]})
	require.NoError(t, err)
	require.NoError(t, list[0].err)
	above.End()

	got := map[string]sdktrace.ReadOnlySpan{}
	for _, sp := range spans.Ended() {
		got[sp.Name()] = sp
	}
	for name, parent := range map[string]string{"store put": "the caller's", "store lookup": "the caller's", "store restore": "the caller's",
		"schedule": "store restore", "device": "store restore", "send": "store restore"} {
		require.Contains(t, got, name)
		require.Equal(t, got[parent].SpanContext().SpanID(), got[name].Parent().SpanID(), name)
		require.False(t, got[name].EndTime().Before(got[name].StartTime()), name)
	}
	require.Equal(t, got["schedule"].EndTime(), got["device"].StartTime())
	require.False(t, got["send"].StartTime().Before(got["device"].StartTime()))
	for _, a := range got["store restore"].Attributes() {
		switch a.Key {
		case "skep.bytes":
			require.EqualValues(t, 9000, a.Value.AsInt64())
		case "skep.keys", "skep.blocks":
			require.EqualValues(t, 1, a.Value.AsInt64())
		}
	}
}

// Who does not trace allocates nothing for it.
//
// Alone: allocations of the whole process are counted.
func TestSpansCostNothingWhenOff(t *testing.T) {
	ctx := testContext(t)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		sp := observe.BeginSpan(ctx, "store lookup")
		sp.Over(1, 2, 3, nil)
		tr := observe.BeginRestore(ctx, 1)
		tr.Issue()
		tr.Land(1, nil)
		tr.Hand()
		tr.End(time.Time{})
	}))
}
