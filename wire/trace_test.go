package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// A traced call shows where its time went: what the engine did lies below the call, and of
// a restore what was sent too.
func TestTraces(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), CapacityBytes: 64 << 20, BlockBytes: blockSize, DeviceCount: 1, CacheBytes: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	spans := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	r := serve(t, "unix", st, ServerOptions{Tracer: p.Tracer("test")})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "acme", 4)
	_, err = c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.NoError(t, err)
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	for _, x := range collect(t, s) {
		require.NoError(t, x.Err)
		x.Release()
	}
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, c.Close())
	r.stop()

	by := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range spans.Ended() {
		by[s.Name()] = s
	}
	for child, parent := range map[string]string{
		"store lookup": "wire lookup", "store put": "wire put", "store restore": "wire restore",
		"schedule": "store restore", "device": "store restore",
	} {
		require.Contains(t, by, child)
		require.Contains(t, by, parent)
		assert.Equal(t, by[parent].SpanContext().SpanID(), by[child].Parent().SpanID(), child)
	}
	above := map[string]bool{} // the engine's "send" is until the server had taken all, ours until the socket had
	call := by["wire restore"]
	for _, s := range spans.Ended() {
		if s.Name() == "send" {
			above[s.Parent().SpanID().String()] = true
			assert.False(t, s.EndTime().After(call.EndTime()))
		}
		for _, a := range s.Attributes() {
			assert.NotContains(t, a.Value.String(), ch.Keys[0].String(), "no key is in a trace")
		}
	}
	assert.True(t, above[call.SpanContext().SpanID().String()], "what was sent is below the call")
	assert.False(t, call.StartTime().After(by["store restore"].StartTime()))
	assert.False(t, call.EndTime().Before(by["store restore"].EndTime()))
}
