package serve

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/wire"
	wireserver "github.com/skepkv/skep/wire/server"
)

// traced is an engine behind the binary protocol, and a client of it. The spans are there
// once stop was called.
func traced(t *testing.T, change ...func(*wire.Options)) (c *wire.Client, spans *tracetest.SpanRecorder, stop func()) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), CapacityBytes: 64 << 20, BlockBytes: 64 << 10, DeviceCount: 1, CacheBytes: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	spans = tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	dir, err := os.MkdirTemp("", "skep") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- wireserver.Serve(ctx, l, st, wireserver.Options{Tracer: p.Tracer("test")}) }()
	o := wire.Options{Addr: "unix:" + l.Addr().String(), Timeout: time.Minute, Strict: true}
	for _, f := range change {
		f(&o)
	}
	c, err = wire.Dial(t.Context(), o)
	require.NoError(t, err)
	stop = func() {
		require.NoError(t, c.Close())
		cancel()
		require.NoError(t, <-done)
	}
	return c, spans, stop
}

// A traced call shows where its time went: what the engine did lies below the call, and of
// a restore, which lasts until its session ends, what was sent too.
func TestTracesNest(t *testing.T) {
	t.Parallel()
	c, spans, stop := traced(t)
	ctx := t.Context()
	ns, err := c.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "n", Shape: skep.Shape{BlockTokens: 16}, Chained: true})
	require.NoError(t, err)
	scope, key := skep.Scope{Namespace: ns.ID}, skep.ChainKey(nil, []uint32{1})
	_, err = c.Put(ctx, &skep.PutRequest{Scope: scope, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: make([]byte, 64<<10)}}}}})
	require.NoError(t, err)
	_, err = c.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: []skep.Key{key}})
	require.NoError(t, err)
	s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: scope, Keys: []skep.Key{key}}}})
	require.NoError(t, err)
	for {
		var into [4]skep.Chunk
		n, err := s.Next(ctx, into[:])
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for i := range n {
			require.NoError(t, into[i].Err)
			into[i].Release()
		}
	}
	require.NoError(t, s.Close(ctx))
	stop()

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
		assert.Equal(t, by[parent].SpanContext().TraceID(), by[child].SpanContext().TraceID(), child)
	}
	above := map[string]bool{} // the engine's "send" is until the server had taken all, ours until the socket had
	call := by["wire restore"]
	for _, s := range spans.Ended() {
		if s.Name() == "send" {
			above[s.Parent().SpanID().String()] = true
			assert.False(t, s.EndTime().After(call.EndTime()))
		}
		for _, a := range s.Attributes() {
			assert.NotContains(t, a.Value.String(), key.String(), "no key is in a trace")
		}
	}
	assert.True(t, above[call.SpanContext().SpanID().String()], "what was sent is below the call")
	assert.False(t, call.StartTime().After(by["store restore"].StartTime()))
	assert.False(t, call.EndTime().Before(by["store restore"].EndTime()))
}
