package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// TestSecondTimeDrawn draws calls of the whole API and what is in their way: a catalog that
// refuses commits, drives that fail, a context that ends at any operation or commit. A call that
// is refused or fails is made again, as its caller would, and so is one in four of the others, as
// one does whose answer was lost. Judged is the pair: it happened once, or it did not and was
// refused; blocks have the bytes of one of the two states, are counted once, and stay so over
// restarts and crashes. `make second-time` does it for SECOND_TIME.
func TestSecondTimeDrawn(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	lives := testNumber(t, "SKEP_SECOND_LIVES", 3)
	var end time.Time
	if v := os.Getenv("SKEP_SECOND_TIME"); v != "" {
		d, err := time.ParseDuration(v)
		require.NoError(t, err)
		end, lives = time.Now().Add(d), 1<<30
	}
	tried, refused := map[string]int{}, map[string]int{}
	n := 0
	for ; n < lives && (end.IsZero() || time.Now().Before(end)); n++ {
		w := newSecondWorld(t, seed+uint64(n))
		t.Cleanup(func() {
			if t.Failed() && w.s != nil {
				t.Logf("it was life SKEP_SEED=%d SKEP_SECOND_LIVES=1:", seed+uint64(n))
				for _, l := range w.log {
					t.Log(l)
				}
				w.log = nil
			}
		})
		w.live()
		w.s = nil
		for _, k := range slices.Collect(maps.Keys(w.tried)) {
			tried[k], refused[k] = tried[k]+w.tried[k], refused[k]+w.refused[k]
		}
	}
	pairs := 0
	for _, k := range slices.Sorted(maps.Keys(tried)) {
		pairs += refused[k]
		t.Logf("%-18s %6d calls, %5d refused and made again", k, tried[k], refused[k])
	}
	t.Logf("%d lives from seed %d, %d pairs", n, seed, pairs)
	require.Positive(t, pairs)
}

// live is one store's life.
func (w *secondWorld) live() {
	calls := []func() secondCall{
		w.put, w.put, w.putAccepted, w.write, w.delete, w.delete, w.purge, w.restore, w.restore, w.lookup, w.hint, w.want,
		w.openNamespace, w.events, w.addDevice, w.drainDevice, w.removeDevice, w.rebalance, w.compact, w.scrub, w.flush,
		w.side, w.alloc, w.reopen, w.reopen, w.reload,
	}
	for range 40 {
		if w.crashes && w.rng.IntN(8) == 0 {
			w.crash()
		}
		if c := calls[w.rng.IntN(len(calls))](); c.do != nil {
			w.pair(c)
		}
	}
	if w.crashes {
		w.crash()
	}
	require.NoError(w.t, w.s.Close())
}

func (w *secondWorld) space() *secondSpace { return w.spaces[w.rng.IntN(len(w.spaces))] }

// some draws blocks of a namespace: a chain's are all from one on.
func (w *secondWorld) some(sp *secondSpace) (list []int) {
	if sp.spec.Chained {
		for i := w.rng.IntN(secondKeys); i < secondKeys; i++ {
			list = append(list, i)
		}
		return list
	}
	list = w.rng.Perm(secondKeys)[:1+w.rng.IntN(secondKeys)]
	slices.Sort(list)
	return list
}

// notYet is what came of blocks that are not stored, as an error.
func notYet(results []skep.PutResult) error {
	for _, r := range results {
		if r.Outcome == skep.Declined {
			return &skep.Error{Op: "put", Kind: r.Reason}
		}
		if r.Differs {
			return fmt.Errorf("exists with other bytes")
		}
	}
	return nil
}

// putOf is a put of a namespace's blocks. Of a chain they are all, the same in every version.
func (w *secondWorld) putOf(name string, ack skep.Ack) secondCall {
	sp := w.space()
	list, v := w.some(sp), 1
	if sp.spec.Chained {
		list = []int{0, 1, 2, 3, 4, 5}
	} else {
		v = sp.last + 1
	}
	sp.last = max(sp.last, v)
	c := secondCall{name: name}
	r := &skep.PutRequest{Scope: sp.sc, Ack: ack}
	for _, i := range list {
		r.Blocks = append(r.Blocks, sp.block(i, v))
		c.touch = append(c.touch, secondTouch{sp, i, v})
	}
	if i := w.rng.IntN(secondKeys); !sp.spec.Chained && !slices.Contains(list, i) && w.rng.IntN(2) == 0 {
		r.Blocks[0].Replaces = &sp.keys[i]
		c.touch = append(c.touch, secondTouch{sp, i, 0})
	}
	c.do = func(ctx context.Context) error {
		res, err := heapPut(ctx, w.s, r)
		if err != nil {
			return err
		}
		if err := notYet(res); err != nil || ack == skep.AckCommitted {
			return err
		}
		if err := w.s.Flush(ctx); err != nil {
			return err
		}
		look := &skep.LookupRequest{Scope: sp.sc, Lease: skep.NoLease} // accepted, and declined later?
		for _, b := range r.Blocks {
			look.Keys = append(look.Keys, b.Key)
		}
		for _, k := range look.Keys {
			keys := []skep.Key{k}
			if sp.spec.Chained {
				keys = look.Keys
			}
			res, err := w.s.Lookup(ctx, &skep.LookupRequest{Scope: sp.sc, Keys: keys, Lease: skep.NoLease})
			if err != nil {
				return err
			}
			if res.Blocks < len(keys) {
				return &skep.Error{Op: "put", Kind: skep.DeviceFailed}
			}
		}
		return nil
	}
	return c
}

func (w *secondWorld) put() secondCall         { return w.putOf("put", skep.AckCommitted) }
func (w *secondWorld) putAccepted() secondCall { return w.putOf("put, accepted", skep.AckAccepted) }

// write is a block by a writer: its bytes in two pieces, the second of which is refused at first.
func (w *secondWorld) write() secondCall {
	sp := w.spaces[0]
	i := w.rng.IntN(secondKeys)
	sp.last++
	v := sp.last
	size := sp.size(i, v)
	whole := sp.block(i, v)
	b := whole.Parts[0].Bytes
	return secondCall{name: "write", touch: []secondTouch{{sp, i, v}}, do: func(ctx context.Context) error {
		wr, err := w.s.Begin(ctx, &skep.BeginRequest{Scope: sp.sc, Key: sp.keys[i], ValidTokens: whole.ValidTokens,
			Manifest: skep.Manifest{{Size: int64(size)}}})
		if err != nil {
			return err
		}
		defer wr.Abort(context.Background())
		if err := wr.Write(ctx, skep.PartKV, 0, b[:size/2]); err != nil {
			return err
		}
		if _, err := wr.Commit(ctx, skep.AckCommitted); skep.KindOf(err) != skep.Invalid {
			return cmpErr(err, errors.New("committed, and bytes are missing"))
		}
		if err := wr.Write(ctx, skep.PartKV, 1, b[1:size/2]); skep.KindOf(err) != skep.Invalid {
			return cmpErr(err, errors.New("bytes were written twice"))
		}
		if err := wr.Write(ctx, skep.PartKV, int64(size/2), b[size/2:]); err != nil {
			return err
		}
		res, err := wr.Commit(ctx, skep.AckCommitted)
		err, _ = skep.Held(err)
		if err != nil {
			return err
		}
		return notYet([]skep.PutResult{res})
	}}
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// delete says how many there were: both calls together never more than there are.
func (w *secondWorld) delete() secondCall {
	sp := w.space()
	c := secondCall{name: "delete"}
	var keys []skep.Key
	there := 0
	for _, i := range w.some(sp) {
		keys = append(keys, sp.keys[i])
		c.touch = append(c.touch, secondTouch{sp, i, 0})
		if sp.may[i][0] != 0 {
			there++
		}
	}
	told := 0
	c.do = func(ctx context.Context) error {
		n, err := w.s.Delete(ctx, sp.sc, keys)
		told += n
		return err
	}
	c.done = func() { require.LessOrEqual(w.t, told, there, "deleted twice") }
	return c
}

func (w *secondWorld) purge() secondCall {
	sp := w.space()
	p := skep.Purge{Namespace: sp.sc.Namespace}
	if sp.sc.Salt != "" && w.rng.IntN(2) == 0 {
		p = skep.Purge{Salt: &sp.sc}
	}
	c := secondCall{name: "purge", do: func(ctx context.Context) error { return w.s.Purge(ctx, p) }}
	for i := range sp.keys {
		c.touch = append(c.touch, secondTouch{sp, i, 0})
	}
	return c
}

// restore is a session, with a claim that is refused and made again.
func (w *secondWorld) restore() secondCall {
	sp := w.space()
	return secondCall{name: "restore", do: func(ctx context.Context) error {
		ses, err := w.s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sp.sc, Keys: sp.keys}}})
		if err != nil {
			return err
		}
		defer ses.Close(context.Background())
		if _, err := ses.Claim(ctx, 0, skep.Only(5, 4), skep.Idle); skep.KindOf(err) != skep.Invalid {
			return cmpErr(err, errors.New("nothing is claimed, and it is no error"))
		}
		claim, err := ses.Claim(ctx, 0, skep.Only(secondKeys-1, secondKeys), skep.Idle)
		if err != nil {
			return err
		}
		into := make([]skep.Chunk, 2)
		for {
			n, err := ses.Next(ctx, into)
			var bad error
			for i := range into[:n] {
				ch := &into[i]
				var data []byte
				for _, p := range ch.Data {
					data = append(data, p...)
				}
				what := ch.Err
				if ch.Err == nil && !slices.Contains(sp.may[ch.Block], sp.versionOf(ch.Block, data)) {
					what = fmt.Errorf("block %d has wrong bytes", ch.Block)
				}
				ch.Release()
				switch k := skep.KindOf(what); {
				case what == nil, k == skep.Claimed && claim.Granted.Len() > 0:
				case k == skep.NotFound || k == skep.Evicted: // or hidden behind one that is not there
					if !sp.spec.Chained && sp.spec.Class == skep.Durable && !slices.Contains(sp.may[ch.Block], 0) {
						bad = fmt.Errorf("block %d is lost", ch.Block)
					}
				default:
					bad = what
				}
			}
			if bad != nil {
				return bad
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}}
}

// lookup takes a lease, has it renewed and gives it back.
func (w *secondWorld) lookup() secondCall {
	sp := w.space()
	var lease skep.LeaseID
	return secondCall{name: "lookup", do: func(ctx context.Context) error {
		if lease == 0 {
			res, err := w.s.Lookup(ctx, &skep.LookupRequest{Scope: sp.sc, Keys: sp.keys, Lease: skep.MaxLease})
			if err != nil || res.Blocks == 0 {
				return err
			}
			lease = res.Lease.ID
		}
		if _, err := w.s.Renew(ctx, lease, 2*skep.MaxLease); skep.KindOf(err) != skep.Invalid {
			return cmpErr(err, errors.New("a lease of any length is given"))
		}
		if _, err := w.s.Renew(ctx, lease, skep.MaxLease); err != nil {
			return err
		}
		err := w.s.Release(ctx, lease)
		if err == nil {
			if err := w.s.Release(ctx, lease); err != nil && !doubtful(err) {
				return fmt.Errorf("twice is no error: %w", err)
			}
			if _, err := w.s.Renew(ctx, lease, skep.MaxLease); !doubtful(err) && skep.KindOf(err) != skep.LeaseExpired {
				return cmpErr(err, errors.New("a lease that was given back is renewed"))
			}
			lease = 0
		}
		return err
	}}
}

func (w *secondWorld) hint() secondCall {
	sp := w.space()
	h := []skep.Hint{{NextUse: time.Second}, {Steps: 3, Program: "p"}, {TTL: time.Hour}}[w.rng.IntN(3)]
	return secondCall{name: "hint", do: func(ctx context.Context) error {
		_, err := w.s.Hint(ctx, sp.sc, sp.keys, h)
		return err
	}}
}

func (w *secondWorld) want() secondCall {
	sp := w.space()
	return secondCall{name: "want", do: func(ctx context.Context) error {
		list, err := w.s.Want(ctx, &skep.WantRequest{Scope: sp.sc, Keys: sp.keys, Bytes: 6000})
		for _, l := range list {
			if l.Outcome == skep.Declined && !l.Wanted {
				return &skep.Error{Op: "want", Kind: l.Reason}
			}
		}
		return err
	}}
}

func (w *secondWorld) openNamespace() secondCall {
	spec := skep.NamespaceSpec{Tenant: "t", Name: sprintf("extra-%d", w.extra), Shape: anySize, Chained: true}
	w.extra++ // or it is not there, which judge sees only after the pair
	var ids []skep.NamespaceID
	return secondCall{name: "open namespace", dark: true, do: func(ctx context.Context) error {
		info, err := w.s.OpenNamespace(ctx, spec)
		if err == nil {
			ids = append(ids, info.ID)
		}
		return err
	}, done: func() {
		require.Len(w.t, slices.Compact(ids), 1, "two numbers for one namespace")
		for _, sp := range w.spaces {
			require.NotContains(w.t, ids, sp.sc.Namespace)
		}
	}}
}

// events is a stream with a snapshot, which begins with a block that is stored.
func (w *secondWorld) events() secondCall {
	some := slices.ContainsFunc(w.spaces[0].may, func(may []int) bool { return may[0] != 0 })
	return secondCall{name: "events", do: func(ctx context.Context) error {
		st, err := w.s.Events(ctx, skep.Cursor{}, true)
		if err != nil {
			return err
		}
		defer st.Close()
		if !some {
			return nil
		}
		into := make([]skep.Event, 7)
		n, err := st.Next(ctx, into)
		if err == nil && (n == 0 || into[0].Kind != skep.EventStored) {
			err = fmt.Errorf("a snapshot begins with %v", into[0].Kind)
		}
		return err
	}}
}

func (w *secondWorld) flush() secondCall {
	return secondCall{name: "flush", do: func(ctx context.Context) error { return w.s.Flush(ctx) }}
}

func (w *secondWorld) alloc() secondCall {
	return secondCall{name: "alloc", do: func(ctx context.Context) error {
		m, err := w.s.Alloc(ctx, w.o.IOBytes/2)
		if err == nil {
			m.Release()
		}
		return err
	}}
}

// side puts rows beside a block that is there, and reads them again.
func (w *secondWorld) side() secondCall {
	sp := w.spaces[0]
	i := slices.IndexFunc(sp.may, func(may []int) bool { return may[0] != 0 })
	if i < 0 {
		return secondCall{}
	}
	bytes := sp.block(i, sp.may[i][0]).Parts[0].Bytes
	return secondCall{name: "side rows", do: func(ctx context.Context) error {
		err := w.s.PutSidecar(ctx, sp.sc, sp.keys[i], []skep.SidecarPiece{{Kind: skep.SidecarHeader, Bytes: bytes}})
		if err != nil {
			return err
		}
		list, err := w.s.Sidecar(ctx, sp.sc, sp.keys[i])
		if err == nil && (len(list) != 1 || string(list[0].Bytes) != string(bytes)) {
			err = fmt.Errorf("%d pieces", len(list))
		}
		return err
	}}
}
