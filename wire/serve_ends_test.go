package wire

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// holding is a Store with drives that do not answer: its sessions hold their memory until they are let go.
type holding struct {
	skep.Store
	letGo chan struct{}
}

type heldSession struct {
	skep.Session
	letGo chan struct{}
}

func (h *holding) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := h.Store.Restore(ctx, r)
	return &heldSession{s, h.letGo}, err
}

func (s *heldSession) Close(ctx context.Context) error {
	select {
	case <-s.letGo:
		return s.Session.Close(ctx)
	case <-ctx.Done():
		return &skep.Error{Op: "stop restore", Kind: skep.NotReleased, Err: ctx.Err()}
	}
}

// What a drive that does not answer holds keeps no server from ending: Serve says so and returns, what the
// drive may write to stays mapped, and goes when the drive has answered.
func TestServeReturnsThoughADriveHoldsMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	for name, where := range map[string]string{"a session into shared memory": "shared", "a call the reader carries out": "inline"} {
		t.Run(name, func(t *testing.T) {
			gate := newGated()
			st := &holding{gate, make(chan struct{})}
			s, err := server.New(st, server.Options{Auth: everybody(t), Drain: time.Millisecond, Limits: server.Limits{Stall: 50 * time.Millisecond}})
			require.NoError(t, err)
			dir, err := os.MkdirTemp("", "skep")
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.Serve(ctx, l) }()

			o := patient("unix:" + l.Addr().String())
			if where == "shared" {
				o.SharedMemory = 4 << 20
			}
			c, err := Dial(t.Context(), o)
			require.NoError(t, err)
			ch := chainOf(t, c, "t", 2)
			began := make(chan struct{})
			if where == "shared" {
				mem, err := c.Alloc(t.Context(), 2*blockSize)
				require.NoError(t, err)
				ch.Dest = skep.Destination{Memory: mem.Bytes()}
				_, err = c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
				require.NoError(t, err)
				require.Equal(t, 1, s.Stats().Regions)
				close(began)
			} else {
				gate.shut()
				go func() {
					defer close(began)
					_, _ = c.Restore(context.Background(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
				}()
				<-gate.reached
			}
			cancel()
			select {
			case err = <-done:
			case <-time.After(time.Minute):
				err = nil
			}
			regions := s.Stats().Regions
			gate.open()
			close(st.letGo)
			<-began
			require.ErrorIs(t, err, skep.NotReleased)
			if where == "shared" {
				require.Equal(t, 1, regions, "still mapped")
			}
			require.Eventually(t, func() bool { n := s.Stats(); return n.Connections+n.Regions+int(n.Memory) == 0 }, time.Minute, time.Millisecond)
			_ = c.Close()
		})
	}
}

// A block that a client left open is aborted within a time when its connection ends.
func TestAbortOfAnOpenBlockHasADeadline(t *testing.T) {
	t.Parallel()
	st := &reluctant{Store: newMemstore(storetest.Config{}), asked: make(chan bool, 1)}
	r := serve(t, "tcp", st, server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 1)
	_, err := c.Begin(t.Context(), &skep.BeginRequest{Scope: ch.Scope, Key: skep.KeyOf([]byte("open")), Manifest: skep.Manifest{{Name: skep.PartKV, Size: blockSize}}})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.True(t, <-st.asked, "Abort had a context without a deadline")
}

type reluctant struct {
	skep.Store
	asked chan bool
}

type reluctantWriter struct {
	skep.BlockWriter
	asked chan bool
}

func (s *reluctant) Begin(ctx context.Context, r *skep.BeginRequest) (skep.BlockWriter, error) {
	w, err := s.Store.Begin(ctx, r)
	return &reluctantWriter{w, s.asked}, err
}

func (w *reluctantWriter) Abort(ctx context.Context) error {
	_, ok := ctx.Deadline()
	w.asked <- ok
	return w.BlockWriter.Abort(ctx)
}
