package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/restore"
)

// watched tells of each list of blocks that restores have found.
type watched struct {
	restore.Source
	found func(asks []restore.Ask, list []*restore.Located)
}

func (w *watched) Locate(asks []restore.Ask) []*restore.Located {
	list := w.Source.Locate(asks)
	w.found(asks, list)
	return list
}

// chainsOfOne are chains of one key each.
func chainsOfOne(sc skep.Scope, keys []skep.Key) []skep.Chain {
	var out []skep.Chain
	for i := range keys {
		out = append(out, skep.Chain{Scope: sc, Keys: keys[i : i+1]})
	}
	return out
}

// The blocks of many chains of one are looked for together, as those of one chain are: 128 at a time, in the order in
// which it is the chains' turn.
func TestManyChainsAreFoundTogether(t *testing.T) {
	t.Parallel()
	const n, urgent = 300, 299
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := openSpace(t, s, "n", skep.Cache, 1, true), chainKeys(1, n)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 100))
	var asked [][]skep.Key
	s.restores.Source = &watched{s.restores.Source, func(asks []restore.Ask, list []*restore.Located) {
		var together []skep.Key
		for _, a := range asks {
			for _, b := range a.Blocks {
				together = append(together, a.Keys[b])
			}
		}
		require.Len(t, list, len(together))
		asked = append(asked, together)
	}}
	chains := chainsOfOne(sc, keys)
	chains[urgent].Priority = 1
	list, err := fetchAll(testContext(t), s, chains)
	require.NoError(t, err)
	for i := range list {
		require.NoError(t, list[i][0].err)
		require.Equal(t, content(keys[i], skep.PartKV, 1, 100), list[i][0].data)
	}
	turns := append([]skep.Key{keys[urgent]}, keys[:urgent]...)
	require.Equal(t, [][]skep.Key{turns[:128], turns[128:256], turns[256:]}, asked)
}

// harm does something to the middle one of three chains, where f is its block.
type harm func(ctx context.Context, s *Store, r *rig, ses skep.Session, sc skep.Scope, f *restore.Located)

// neighbours restores three chains of one whose blocks lie side by side and are found together. As soon as they are,
// the middle one is harmed. Its neighbours come; what became of it is returned.
func neighbours(t *testing.T, into [3][]byte, do harm) error {
	t.Helper()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { o.DeviceCount = 1 })
	defer func() { require.NoError(t, s.Close()) }()
	keys := chainKeys(1, 3)
	req := &skep.RestoreRequest{}
	for i, k := range keys {
		sc := openSpace(t, s, "n"+itoa(i), skep.Cache, 1, true)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{k}, faultBlock))
		req.Chains = append(req.Chains, skep.Chain{Scope: sc, Keys: keys[i : i+1],
			Dest: skep.Destination{Memory: into[i], Stride: faultBlock}})
	}
	begun := make(chan skep.Session, 1)
	s.restores.Source = &watched{s.restores.Source, func(_ []restore.Ask, list []*restore.Located) {
		require.Len(t, list, len(keys))
		do(ctx, s, r, <-begun, req.Chains[1].Scope, list[1])
	}}
	ses, err := s.Restore(ctx, req)
	require.NoError(t, err)
	begun <- ses
	came := make(map[int]error)
	require.NoError(t, skep.Drain(ctx, ses, func(ch *skep.Chunk) error {
		came[ch.Chain] = ch.Err
		if ch.Err == nil {
			want := content(keys[ch.Chain], skep.PartKV, 1, faultBlock)
			require.Equal(t, want, into[ch.Chain], ch.Chain)
		}
		return nil
	}))
	require.NoError(t, ses.Close(ctx))
	require.Len(t, came, len(keys))
	require.NoError(t, came[0])
	require.NoError(t, came[2])
	return came[1]
}

// What happens to one of several chains that are found together is that chain's alone.
func TestNeighboursOfAChainAreServed(t *testing.T) {
	t.Parallel()
	type (
		session = skep.Session
		scope   = skep.Scope
		located = restore.Located
	)
	for _, tt := range []struct {
		name string
		harm harm
		want skep.Kind // Other: it comes, since it was found before
	}{
		{"deleted", func(ctx context.Context, s *Store, _ *rig, _ session, sc scope, _ *located) {
			_, err := s.Delete(ctx, sc, chainKeys(1, 3)[1:2])
			require.NoError(t, err)
		}, skep.Other},
		{"purged", func(ctx context.Context, s *Store, _ *rig, _ session, sc scope, _ *located) {
			require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
		}, skep.Other},
		{"stopped", func(ctx context.Context, _ *Store, _ *rig, ses session, _ scope, _ *located) {
			require.NoError(t, ses.Stop(ctx, 1))
		}, skep.Stopped},
		{"late", func(ctx context.Context, _ *Store, _ *rig, ses session, _ scope, _ *located) {
			require.NoError(t, ses.Reprioritise(ctx, 1, 0, time.Unix(1, 0)))
		}, skep.Deadline},
		{"claimed", func(ctx context.Context, _ *Store, _ *rig, ses session, _ scope, _ *located) {
			_, err := ses.Claim(ctx, 1, skep.All, skep.Busy)
			require.NoError(t, err)
		}, skep.Claimed},
		{"damaged", func(_ context.Context, _ *Store, r *rig, _ session, _ scope, f *located) {
			_, off := f.Stripe.Segment(0)
			var b [1]byte
			r.mems[0].Peek(off+int64(f.At.Page)*layout.PageSize, b[:])
			b[0] ^= 1
			r.mems[0].Poke(off+int64(f.At.Page)*layout.PageSize, b[:])
		}, skep.Damaged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var into [3][]byte
			for i := range into {
				into[i] = device.AlignedBuffer(faultBlock)
			}
			err := neighbours(t, into, tt.harm)
			require.Equal(t, tt.want, skep.KindOf(err), "%v", err)
		})
	}
}

// A block that was found and that nobody wants any more does not keep cleaning from its group until its session ends:
// not when it was answered while it was looked for, nor afterwards, while another's read is late.
func TestABlockThatNobodyWantsIsNotPinned(t *testing.T) {
	t.Parallel()
	stop := func(ctx context.Context, ses skep.Session) error { return ses.Stop(ctx, 1) }
	claim := func(ctx context.Context, ses skep.Session) error {
		_, err := ses.Claim(ctx, 1, skep.All, skep.Busy)
		return err
	}
	late := func(ctx context.Context, ses skep.Session) error { return ses.Reprioritise(ctx, 1, 0, time.Unix(1, 0)) }
	answers := map[string]func(context.Context, skep.Session) error{"stopped": stop, "claimed": claim, "late": late}
	for name, answer := range answers {
		for _, meanwhile := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " while it is looked for", false: " afterwards"}[meanwhile], func(t *testing.T) {
				t.Parallel()
				ctx := testContext(t)
				s, r, _ := openRig(t, func(o *Options) { unjudged(o); o.DeviceCount = 1 })
				defer func() { require.NoError(t, s.Close()) }()
				sc, keys := openSpace(t, s, "n", skep.Cache, 1, true), chainKeys(1, 2)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
				begun := make(chan skep.Session, 1)
				var found []*restore.Located
				s.restores.Source = &watched{s.restores.Source, func(_ []restore.Ask, list []*restore.Located) {
					require.Len(t, list, len(keys))
					require.NotNil(t, list[1].Stripe)
					found = list
					if meanwhile {
						require.NoError(t, answer(ctx, <-begun))
					}
				}}
				r.faults[0].Hold(device.Read)
				ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: chainsOfOne(sc, keys), Window: 1})
				require.NoError(t, err)
				begun <- ses
				require.NoError(t, r.faults[0].WaitHeld(ctx, 1))
				if !meanwhile {
					require.NoError(t, answer(ctx, ses))
				}
				require.Nil(t, found[1].Stripe)
				require.NotNil(t, found[0].Stripe)
				r.faults[0].Release()
				require.NoError(t, skep.Drain(ctx, ses, func(*skep.Chunk) error { return nil }))
				require.NoError(t, ses.Close(ctx))
			})
		}
	}
}
