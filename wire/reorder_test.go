package wire

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// Calls of one client go over several connections that overtake each other at every piece: what
// was answered holds for whatever is asked next, on whichever connection.
func TestConnectionsThatOvertakeEachOther(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	p := newProxy(t, r.addr)
	o := r.options()
	o.Addr, o.Conns, o.Strict, o.Timeout, o.Patience = p.addr, 6, true, time.Minute, time.Minute
	c := r.dial(t, o)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "acme", Name: "values", Shape: skep.Shape{BlockTokens: 1}})
	require.NoError(t, err)
	p.jitter.Store(int64(2 * time.Millisecond))
	var wait sync.WaitGroup
	failed := make(chan error, 12)
	for w := range 12 {
		wait.Go(func() {
			if err := overtake(t, c, skep.Scope{Namespace: ns.ID}, w); err != nil {
				failed <- err
			}
		})
	}
	wait.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, r.Stats().Accepted, int64(6), "several connections were used")
}

// overtake is one writer of one key: what it put last is what it finds and restores, and what it
// deleted is gone.
func overtake(t *testing.T, c *Client, scope skep.Scope, who int) error {
	ctx, key := t.Context(), skep.KeyOf(fmt.Append(nil, "writer ", who))
	for round := range 12 {
		value := binary.LittleEndian.AppendUint64(nil, uint64(who)<<32|uint64(round))
		res, err := c.Put(ctx, &skep.PutRequest{Scope: scope, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: value}}}}})
		if err != nil || res[0].Outcome != skep.Committed {
			return fmt.Errorf("put %d: %v, %w", round, res, err)
		}
		found, err := c.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: []skep.Key{key}, Lease: time.Minute})
		if err != nil || found.Blocks != 1 {
			return fmt.Errorf("lookup %d: %d blocks, %w", round, found.Blocks, err)
		}
		s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: scope, Keys: []skep.Key{key}, Lease: found.Lease.ID}}})
		if err != nil {
			return err
		}
		got := make([]skep.Chunk, 1)
		if _, err := s.Next(ctx, got); err != nil || got[0].Err != nil {
			return fmt.Errorf("restore %d: %w, %w", round, err, got[0].Err)
		}
		if string(got[0].Data[0]) != string(value) {
			return fmt.Errorf("restore %d: %x and not %x", round, got[0].Data[0], value)
		}
		got[0].Release()
		if err := s.Close(ctx); err != nil {
			return err
		}
		if _, err := c.Renew(ctx, found.Lease.ID, time.Minute); err != nil {
			return fmt.Errorf("renew %d: %w", round, err)
		}
		if err := c.Release(ctx, found.Lease.ID); err != nil {
			return err
		}
		if round%3 != 2 {
			continue
		}
		if n, err := c.Delete(ctx, scope, []skep.Key{key}); err != nil || n != 1 {
			return fmt.Errorf("delete %d: %d, %w", round, n, err)
		}
		if found, err = c.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: []skep.Key{key}, Lease: skep.NoLease}); err != nil || found.Blocks != 0 {
			return fmt.Errorf("lookup of what was deleted: %d blocks, %w", found.Blocks, err)
		}
	}
	return nil
}
