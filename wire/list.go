package wire

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

// mostListed is how many keys one answer lists at most.
const mostListed = 4096

func prepareList(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.ListRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if err := r.reach(m.Namespace); err != nil {
		return nil, err
	}
	n := int(min(m.N, mostListed))
	if err := r.Spend(3 * int64(n) * skep.KeySize); err != nil { // a frame has up to two lengths while it grows
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		var out frames.ListResult
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
	var m frames.ListResult
	err := c.do(ctx, spec{t: frames.TypeList, op: "count blocks", again: true, long: true},
		&frames.ListRequest{Namespace: space}, nil, &m)
	return m.Blocks, err
}

// ListKeys implements skep.Lister. A server that does not know the frame makes it Unsupported.
func (c *Client) ListKeys(ctx context.Context, space skep.NamespaceID, from uint64, n int) ([]skep.Key, uint64, error) {
	const op = "list keys"
	if n < 1 {
		return nil, 0, skep.Invalidf(op, "keys", n, "at least 1")
	}
	var m frames.ListResult
	err := c.do(ctx, spec{t: frames.TypeList, op: op, again: true, long: true},
		&frames.ListRequest{Namespace: space, From: from, N: uint32(min(n, mostListed))}, nil, &m)
	return m.Keys, m.Next, err
}
