package server

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
)

// OpenTelemetry spans of calls. What the Store traces lies below its call's:
//
//	wire lookup         from the last byte of the frame's header to the answer
//	  store lookup
//	wire restore        from the frame's header to the session's end
//	  store restore     schedule, device
//	  send              from the first chunk's frame to the last one's last byte
//
// Nothing in them is a key or a name of a block. A server without a Tracer makes none.

// trace begins the request's span.
func (r *request) trace() {
	r.ctx = r.x.ctx
	if t := r.x.s.opt.Tracer; t != nil {
		r.ctx, r.span = t.Start(r.x.ctx, "wire "+r.h.Type.String(), trace.WithTimestamp(r.began),
			trace.WithAttributes(attribute.String("skep.tenant", r.x.who.Tenant), attribute.Int64("skep.bytes", int64(r.h.Payload))))
	}
}

// traced ends the request's span, unless a session took it over; err is the call's.
func (r *request) traced(err error) {
	if r.span != nil {
		endSpan(r.span, err)
		r.span = nil
	}
}

func endSpan(s trace.Span, err error) {
	outcome := "ok"
	switch k := skep.KindOf(err); {
	case err == nil:
	case k == skep.Overloaded:
		outcome = "shed"
	default:
		outcome = "error"
		s.SetAttributes(attribute.String("skep.error", k.Error()))
	}
	s.SetAttributes(attribute.String("skep.outcome", outcome))
	s.End()
}

// sending is when a session sent its chunks, and the span of its call. The zero value is of
// a server that traces nothing.
type sending struct {
	span        trace.Span
	ctx         context.Context // with the span in it
	first, last time.Time
	bytes       int64
	frames      int
	err         error // why it ended before all was sent
}

// frame is told of a frame of chunks that was sent.
func (s *sending) frame(began time.Time, bytes int64) {
	if s.span == nil {
		return
	}
	if s.first.IsZero() {
		s.first = began
	}
	s.last = time.Now()
	s.bytes += bytes
	s.frames++
}

// end ends the session's span.
func (s *sending) end() {
	if s.span == nil {
		return
	}
	if !s.first.IsZero() {
		_, send := s.span.TracerProvider().Tracer("github.com/skepkv/skep/wire").Start(s.ctx, "send", trace.WithTimestamp(s.first),
			trace.WithAttributes(attribute.Int64("skep.bytes", s.bytes), attribute.Int("skep.frames", s.frames)))
		send.End(trace.WithTimestamp(s.last))
	}
	endSpan(s.span, s.err)
}
