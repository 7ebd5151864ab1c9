package wire

import (
	"context"

	"github.com/skepkv/skep"
)

// mostListed is how many keys one answer lists at most.
const mostListed = 4096

// listRequest asks what a namespace holds: how many blocks, and at most N keys from a place on.
type listRequest struct {
	Namespace skep.NamespaceID
	From      uint64
	N         uint32
}

func (m *listRequest) walk(c *coder) {
	num32(c, &m.Namespace)
	c.u64(&m.From)
	c.u32(&m.N)
}

type listResult struct {
	Blocks int64 // that the namespace holds
	Next   uint64
	Keys   []skep.Key
}

func (m *listResult) walk(c *coder) {
	c.i64(&m.Blocks)
	c.u64(&m.Next)
	c.keys(&m.Keys)
}

func prepareList(r *request) (func(context.Context) (message, error), error) {
	var m listRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if err := r.reach(m.Namespace); err != nil {
		return nil, err
	}
	n := int(min(m.N, mostListed))
	if err := r.spend(3 * int64(n) * skep.KeySize); err != nil { // a frame has up to two lengths while it grows
		return nil, err
	}
	return func(ctx context.Context) (message, error) {
		var out listResult
		var err error
		if out.Blocks, err = r.x.s.store.CountBlocks(ctx, m.Namespace); err != nil || n == 0 {
			return &out, err
		}
		out.Keys, out.Next, err = r.x.s.store.ListKeys(ctx, m.Namespace, m.From, n)
		return &out, err
	}, nil
}

// CountBlocks implements skep.Lister. A server that does not know the frame makes it Unsupported.
func (c *Client) CountBlocks(ctx context.Context, space skep.NamespaceID) (int64, error) {
	var m listResult
	err := c.do(ctx, spec{t: TypeList, op: "count blocks", again: true, long: true}, &listRequest{Namespace: space}, nil, &m)
	return m.Blocks, err
}

// ListKeys implements skep.Lister. A server that does not know the frame makes it Unsupported.
func (c *Client) ListKeys(ctx context.Context, space skep.NamespaceID, from uint64, n int) ([]skep.Key, uint64, error) {
	const op = "list keys"
	if n < 1 {
		return nil, 0, skep.Invalidf(op, "keys", n, "at least 1")
	}
	var m listResult
	err := c.do(ctx, spec{t: TypeList, op: op, again: true, long: true}, &listRequest{space, from, uint32(min(n, mostListed))}, nil, &m)
	return m.Keys, m.Next, err
}
