package hostile

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
)

// httpPlayer speaks HTTP, right and wrong.
type httpPlayer struct{}

// Name implements Player.
func (httpPlayer) Name() string { return "http" }

// Play implements Player.
func (httpPlayer) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	c, err := t.Dial(ctx, HTTP, r)
	if err != nil {
		return nil
	}
	var talk [][]byte
	for range 1 + r.IntN(6) {
		talk = append(talk, httpRequest(r))
	}
	if r.IntN(3) > 0 {
		talk = Mutate(r, talk)
	}
	return Deliver(ctx, r, c, bytes.Join(talk, nil))
}

func httpRequest(r *rand.Rand) []byte {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	path := one("/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1/namespaces", "/api/v1/tenants", "/api/v1/stats", "/api/v1/purge", "/api/v1/lookup",
		"/api/v1/jobs/scrub/start", "/debug/pprof/", "/debug/pprof/heap", "/../../etc/passwd", "/"+strings.Repeat("a", r.IntN(40<<10)))
	body := one("", "{}", `{"tenant":"`+HonestTenant+`"}`, `{"namespace":1}`, `[`, strings.Repeat(`{"a":`, r.IntN(5000)), strings.Repeat("x", r.IntN(2<<20)))
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/%s\r\nHost: skep\r\n", one("GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "PRI", "BREW"), path, one("1.1", "1.1", "1.0", "2.0", "9"))
	if token := one("", TokenHostile, TokenHostile, TokenReader, TokenWrong); token != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", token)
	}
	for range r.IntN(8) {
		fmt.Fprintf(&b, "X-%d: %s\r\n", r.IntN(9), strings.Repeat("y", r.IntN(6<<10)))
	}
	switch r.IntN(5) {
	case 0:
		fmt.Fprintf(&b, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	case 1:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", oddNumber(r), body)
	case 2:
		fmt.Fprintf(&b, "Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", len(body), body)
	default:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	return b.Bytes()
}
