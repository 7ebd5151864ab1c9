package wire

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// hastyCommits is a Store whose commits end before they have begun.
type hastyCommits struct {
	skep.Store
	open chan skep.BlockWriter
}

func (h *hastyCommits) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	w, err := h.Store.Begin(ctx, r)
	h.open <- w
	return hastyCommit{w}, err
}

type hastyCommit struct{ skep.BlockWriter }

func (hastyCommit) Commit(context.Context, skep.Ack) (skep.PutResult, error) {
	return skep.PutResult{}, &skep.Error{Op: "commit", Kind: skep.Deadline}
}

// A commit that fails leaves no block open that its client cannot name any more.
func TestACommitThatFailsLeavesNoBlockOpen(t *testing.T) {
	t.Parallel()
	st := &hastyCommits{newMemstore(storetest.Config{}), make(chan skep.BlockWriter, 1)}
	r := serve(t, "tcp", st, server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 1)
	w, err := c.Begin(t.Context(), &skep.BeginRequest{Scope: ch.Scope, Key: skep.KeyOf([]byte("a")), Manifest: skep.Manifest{{Name: skep.PartKV, Size: blockSize}}})
	require.NoError(t, err)
	_, err = w.Commit(t.Context(), skep.AckCommitted)
	require.ErrorIs(t, err, skep.Deadline)
	require.NoError(t, w.Abort(t.Context()))
	require.ErrorIs(t, (<-st.open).Write(t.Context(), skep.PartKV, 0, []byte{1}), skep.Closed)
}

// Blocks that were begun and whose time ran out keep nobody from beginning others.
func TestBlocksWhoseTimeRanOutMakeRoom(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Calls: 1}})
	c := r.dial(t, patient(r.addr)) // one connection
	ch := chainOf(t, r.st, "t", 1)
	for i := range 64 {
		var err error
		require.Eventually(t, func() bool {
			_, err = c.Begin(t.Context(), &skep.BeginRequest{Scope: ch.Scope, Key: skep.KeyOf([]byte{byte(i)}),
				Timeout: time.Millisecond, Manifest: skep.Manifest{{Name: skep.PartKV, Size: blockSize}}})
			return skep.KindOf(err) != skep.Overloaded
		}, 20*time.Second, 10*time.Millisecond)
		require.NoError(t, err)
	}
}
