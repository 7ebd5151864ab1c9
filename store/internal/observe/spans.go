package observe

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

// Span is one of them; the zero Span is none.
type Span struct{ trace.Span }

// BeginSpan begins a span below ctx's.
func BeginSpan(ctx context.Context, name string) Span {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return Span{}
	}
	_, s := above.TracerProvider().Tracer(tracerName).Start(ctx, name)
	return Span{s}
}

// Over ends the span and says what it was about. A nil error is none.
func (s Span) Over(keys, blocks int, bytes int64, err error) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.Int("skep.keys", keys), attribute.Int("skep.blocks", blocks), attribute.Int64("skep.bytes", bytes))
	if err != nil {
		s.SetAttributes(attribute.String("skep.error", skep.KindOf(err).Error()))
	}
	s.End()
}

// RestoreSpan is when a restore did what. Nil: nobody wants to know.
type RestoreSpan struct {
	ctx     context.Context // with the span of the restore in it
	span    Span
	keys    int
	blocks  int
	bytes   int64
	issued  time.Time // first
	landed  time.Time // last
	taken   time.Time // first
	handed  time.Time // last
	failing error     // of the last miss
}

// BeginRestore begins the span of a restore of so many keys below ctx's. Nil: nobody wants to know.
func BeginRestore(ctx context.Context, keys int) *RestoreSpan {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return nil
	}
	ctx, s := above.TracerProvider().Tracer(tracerName).Start(ctx, "store restore")
	return &RestoreSpan{ctx: ctx, span: Span{s}, keys: keys}
}

// Issue, Land and Hand are called under one lock, and on a nil span do nothing.

// Issue notes that reads were given to the drives.
func (t *RestoreSpan) Issue() {
	if t != nil && t.issued.IsZero() {
		t.issued = time.Now()
	}
}

// Land notes a chunk that came, or with err did not.
func (t *RestoreSpan) Land(bytes int64, err error) {
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

// Hand notes that the caller took chunks.
func (t *RestoreSpan) Hand() {
	if t == nil {
		return
	}
	t.handed = time.Now()
	if t.taken.IsZero() {
		t.taken = t.handed
	}
}

// End makes the spans of a restore that began then.
func (t *RestoreSpan) End(began time.Time) {
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
	t.span.Over(t.keys, t.blocks, t.bytes, t.failing)
}
