package wire

import (
	"context"
	"errors"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/epoch"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// WithEpoch has calls made with the context say that the caller computed with the map of this epoch. A server that is
// no node of a cluster is not told. Epoch 0 is of a caller that knows no map: its calls to a node of a cluster are not
// sent, and are errors of kind StaleMap.
func WithEpoch(ctx context.Context, e uint32) context.Context {
	return epoch.With(ctx, e)
}

// mark puts the epoch of ctx's caller into a header to a node of a cluster.
func mark(ctx context.Context, h *frames.Header) error {
	e, told := epoch.Of(ctx)
	if told && e == 0 {
		return &link.Unsent{Err: &skep.Error{Op: h.Type.String(), Kind: skep.StaleMap, Field: "epoch", Value: "none",
			Limit: "the cluster's"}}
	}
	h.Epoch = e
	return nil
}

// ServerID is one run of a server: another one each time it starts, when its Store may be another one, too.
type ServerID = [16]byte

// ErrRestarted is in the error of a call that was for another run of the server than the one that is there (WithServer).
// The call was not sent.
var ErrRestarted = errors.New("the server is another one, or was started anew")

type serverKey struct{}

// WithServer has calls made with the context reach that run of the server, or fail with an error of kind Unavailable
// that has ErrRestarted in it: for who goes on by what that run said, as the numbers of its namespaces.
func WithServer(ctx context.Context, id ServerID) context.Context {
	return context.WithValue(ctx, serverKey{}, id)
}

// ServerID is the run of the server that the client speaks to.
//
// Errors: those of a connection, where there is none yet.
func (c *Client) ServerID(ctx context.Context) (ServerID, error) {
	x, err := c.conn(ctx, 0)
	if err != nil {
		return ServerID{}, err
	}
	return x.hi.Server, x.meant(ctx, frames.TypeOpenNamespace)
}

// meant refuses what is for another run of the server, or for another node.
func (x *clientConn) meant(ctx context.Context, t frames.Type) error {
	if id, told := ctx.Value(serverKey{}).(ServerID); told && id != x.hi.Server {
		return &link.Unsent{Err: &skep.Error{Op: t.String(), Kind: skep.Unavailable, Field: "server",
			Err: ErrRestarted}}
	}
	err := x.c.meant.Check(t, &x.hi)
	if err != nil && x.alive() && x.c.meant.Redial() {
		x.retire()
	}
	return err
}
