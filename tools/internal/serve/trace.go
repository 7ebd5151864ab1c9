package serve

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// startTracing begins sending spans where the configuration says, and gives what ends it.
func (s *server) startTracing(ctx context.Context) (stop func(), err error) {
	t := &s.c.Trace
	if t.Endpoint == "" {
		return func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.Endpoint))
	if err != nil {
		return nil, err
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.Ratio))),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "skep"), attribute.String("service.version", s.o.Version))),
	)
	s.tracer = p.Tracer("github.com/skepkv/skep")
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := p.Shutdown(ctx); err != nil {
			s.log.Warn("traces not all sent", "error", err)
		}
	}, nil
}
