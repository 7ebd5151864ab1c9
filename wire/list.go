package wire

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
)

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
		&frames.ListRequest{Namespace: space, From: from, N: uint32(min(n, frames.MostListed))}, nil, &m)
	return m.Keys, m.Next, err
}
