package store

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
)

// OpenTelemetry spans. A call whose context carries a span that is recorded has spans of
// its own below it, made by that span's provider:
//
//	store lookup
//	store put
//	store restore     from Restore to Close
//	  schedule        until the first reads are given to the drives' queues
//	  device          from then until the last chunk was read and checked
//	  send            from the first chunk the caller took to the last
//
// Nothing in them is a key or a name. Other calls pay for a look into the context, and
// allocate nothing.

const tracerName = "github.com/skepkv/skep/store"

// span is one of them; the zero span is none.
type span struct{ trace.Span }

// beginSpan begins a span below ctx's.
func beginSpan(ctx context.Context, name string) span {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return span{}
	}
	_, s := above.TracerProvider().Tracer(tracerName).Start(ctx, name)
	return span{s}
}

// over ends the span and says what it was about. A nil error is none.
func (s span) over(keys, blocks int, bytes int64, err error) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.Int("skep.keys", keys), attribute.Int("skep.blocks", blocks), attribute.Int64("skep.bytes", bytes))
	if err != nil {
		s.SetAttributes(attribute.String("skep.error", skep.KindOf(err).Error()))
	}
	s.End()
}

// traced is when a restore did what. Nil: nobody wants to know.
type traced struct {
	ctx     context.Context // with the span of the restore in it
	span    span
	keys    int
	blocks  int
	bytes   int64
	issued  time.Time // first
	landed  time.Time // last
	taken   time.Time // first
	handed  time.Time // last
	failing error     // of the last miss
}

func beginRestore(ctx context.Context, keys int) *traced {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return nil
	}
	ctx, s := above.TracerProvider().Tracer(tracerName).Start(ctx, "store restore")
	return &traced{ctx: ctx, span: span{s}, keys: keys}
}

// The following are called under the session's mu.

func (t *traced) issue() {
	if t != nil && t.issued.IsZero() {
		t.issued = time.Now()
	}
}

func (t *traced) land(bytes int64, err error) {
	if t == nil {
		return
	}
	t.landed = time.Now()
	if err != nil {
		t.failing = err
		return
	}
	t.blocks++
	t.bytes += bytes
}

func (t *traced) hand() {
	if t == nil {
		return
	}
	t.handed = time.Now()
	if t.taken.IsZero() {
		t.taken = t.handed
	}
}

// end makes the spans.
func (t *traced) end(began time.Time) {
	if t == nil {
		return
	}
	now := time.Now()
	child := func(name string, from, to time.Time) {
		if from.IsZero() || to.IsZero() {
			return
		}
		_, s := t.span.TracerProvider().Tracer(tracerName).Start(t.ctx, name, trace.WithTimestamp(from))
		s.End(trace.WithTimestamp(to))
	}
	issued := t.issued
	if issued.IsZero() {
		issued = now // nothing had to be read
	}
	child("schedule", began, issued)
	child("device", t.issued, t.landed)
	child("send", t.taken, t.handed)
	t.span.over(t.keys, t.blocks, t.bytes, t.failing)
}
