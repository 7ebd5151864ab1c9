package httpapi

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// Conns shares a server's connections among tenants: where several take all they can, whoever comes
// finds one. A connection is the tenant's whose request it carried last, until it is closed. Before
// its first request the server's timeouts end it; one whose requests say no tenant is one of the
// strangers', who have a share as a tenant has, and beyond it is closed after each answer.
type Conns struct {
	pool      auth.Pool
	strangers auth.Tenant
	m         sync.Map // of net.Conn: *holder
}

// holder is whose a connection is.
type holder struct {
	mu   sync.Mutex
	by   *auth.Held
	over bool
}

type holderKey struct{}

// NewConns shares limit connections.
func NewConns(limit int) *Conns { return &Conns{pool: auth.Pool{Limit: int64(limit)}} }

// Watch has s tell of its connections. It is to be called before s serves.
func (c *Conns) Watch(s *http.Server) {
	s.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		h := &holder{}
		c.m.Store(nc, h)
		return context.WithValue(ctx, holderKey{}, h)
	}
	s.ConnState = func(nc net.Conn, state http.ConnState) {
		if state != http.StateClosed && state != http.StateHijacked {
			return
		}
		if h, ok := c.m.LoadAndDelete(nc); ok {
			h.(*holder).end()
		}
	}
}

// meet makes the connection of a request the strangers', unless it is a tenant's; false when they have their share.
func (c *Conns) meet(r *http.Request) bool {
	return c == nil || c.take(r, c.pool.Of(&c.strangers), false) == nil
}

// enter makes a request's connection a tenant's; Overloaded when that has its share.
func (c *Conns) enter(r *http.Request, t *auth.Tenant) error {
	if c == nil {
		return nil
	}
	return c.take(r, c.pool.Of(t), true)
}

// take gives a request's connection to by, from another only where that is said.
func (c *Conns) take(r *http.Request, by *auth.Held, over bool) error {
	h, _ := r.Context().Value(holderKey{}).(*holder)
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == by || h.over || h.by != nil && !over {
		return nil
	}
	if h.by != nil {
		h.by.Give(1)
	}
	if !by.Take(1) {
		if h.by != nil && !h.by.Take(1) {
			h.by = nil
		}
		return &skep.Error{Op: "http", Kind: skep.Overloaded, Field: "connections of the tenant", Limit: "its share", RetryAfter: time.Second}
	}
	h.by = by
	return nil
}

func (h *holder) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.by != nil {
		h.by.Give(1)
		h.by = nil
	}
}
