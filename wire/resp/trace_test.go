package resp

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A traced GET shows where its time went: lookup, device, send, under one span.
func TestTraces(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	f := serve(t, nil, Options{Tracer: p.Tracer("test")})
	c := f.dial()
	require.Equal(t, "+OK", c.do("SET", "secretkey", string(randomBytes(2*pieceBytes))))
	c.do("GET", "secretkey")
	require.Equal(t, "+PONG", c.words("PING")) // by now the GET's spans have ended
	names := map[string]int{}
	var get sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.Name() == "resp GET" {
			get = s
		}
		names[s.Name()]++
	}
	require.NotNil(t, get)
	assert.Equal(t, 1, names["lookup"])
	assert.Equal(t, 1, names["device"])
	assert.Equal(t, 2, names["send"], "a piece each")
	for _, s := range spans.Ended() {
		if s.Name() == "send" || s.Name() == "lookup" || s.Name() == "device" {
			assert.Equal(t, get.SpanContext().SpanID(), s.Parent().SpanID(), s.Name())
		}
	}
	for _, a := range get.Attributes() {
		assert.NotContains(t, a.Value.String(), "secret", "no key is in a trace")
	}
}
