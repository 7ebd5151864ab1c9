package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// model is a small attention shape: 32 KiB a block of 16 tokens, 8 layers of 4 KiB each.
var model = skep.Shape{Kind: skep.Attention, Layers: 8, KVHeads: 1, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}

const modelBlock = 32 << 10

// openSlow is a store on one simulated drive of so many bytes a second.
func openSlow(t testing.TB, bps int64, change func(*Options)) *Store {
	t.Helper()
	o := small(t.TempDir())
	o.DeviceCount, o.CacheBytes, o.CapacityBytes, o.SegmentBytes, o.BlockBytes = 1, -1, 64<<20, 2<<20, modelBlock
	o.OpenDevice = func(_ int, _ string, create bool, size int64) (device.Device, error) {
		return device.NewThrottled(device.NewMemory(size), device.Model{ReadBandwidth: bps, Latency: 100 * time.Microsecond})
	}
	if change != nil {
		change(&o)
	}
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// openFaulty is openSlow with a drive that can be told to do wrong.
func openFaulty(t testing.TB, bps int64, change func(*Options)) (s *Store, drive *device.Fault) {
	t.Helper()
	s = openSlow(t, bps, func(o *Options) {
		change(o)
		open := o.OpenDevice
		o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
			d, err := open(i, path, create, size)
			if err != nil {
				return nil, err
			}
			drive = device.NewFault(d, 1)
			return drive, nil
		}
	})
	return s, drive
}

func openModel(t testing.TB, s *Store) skep.Scope {
	t.Helper()
	n, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "t", Name: "m", Model: "m", Shape: model, Chained: true})
	require.NoError(t, err)
	return skep.Scope{Namespace: n.ID}
}

// engine is an emulated engine of one chain: it claims, sleeps as long as computing would take,
// and writes what it "computed" into the destination.
type engine struct {
	ses      skep.Session
	chain    int
	keys     []skep.Key
	dest     []byte
	perToken time.Duration
	byLayer  bool
	claimed  []skep.Range
}

// run computes until the pointers have met.
func (e *engine) run(ctx context.Context, t testing.TB) {
	e.from(ctx, t, 0)
}

// from computes from a position on.
func (e *engine) from(ctx context.Context, t testing.TB, pos int) {
	end := len(e.keys) * model.BlockTokens
	if e.byLayer {
		end = model.Layers
	}
	for pos < end && ctx.Err() == nil {
		c, err := e.ses.Claim(ctx, e.chain, skep.Only(pos, end), skep.Idle)
		require.NoError(t, err)
		if c.Granted.Len() > 0 {
			n := c.Granted.Len()
			took := time.Duration(n) * e.perToken
			time.Sleep(took)
			e.claimed = append(e.claimed, c.Granted)
			e.write(c.Granted)
			require.NoError(t, e.ses.Computed(ctx, e.chain, c.Granted, took, 0))
		} else if c.Next == pos {
			time.Sleep(200 * time.Microsecond) // what is left is for the drives: ask again
		}
		pos = c.Next
	}
}

func (e *engine) write(r skep.Range) {
	for b, k := range e.keys {
		want := content(k, skep.PartKV, 1, modelBlock)
		from, to := 0, modelBlock
		if e.byLayer {
			from, to = r.From*modelBlock/model.Layers, r.To*modelBlock/model.Layers
		} else if b*model.BlockTokens < r.From || b*model.BlockTokens >= r.To {
			continue
		}
		copy(e.dest[b*modelBlock+from:b*modelBlock+to], want[from:to])
	}
}

// collect takes a session's chunks to the end.
func collect(ctx context.Context, t testing.TB, ses skep.Session) (landed, claimed int, missed []skep.Chunk) {
	into := make([]skep.Chunk, 16)
	for {
		n, err := ses.Next(ctx, into)
		for _, c := range into[:n] {
			switch skep.KindOf(c.Err) {
			case skep.Claimed:
				claimed++
			default:
				if c.Err != nil {
					missed = append(missed, c)
				} else {
					landed++
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return landed, claimed, missed
		}
		require.NoError(t, err)
	}
}

// An engine that computes and drives that load meet in the middle: nothing twice, every byte
// right, over tokens and over layers.
func TestTwoPointers(t *testing.T) {
	t.Parallel()
	for _, byLayer := range []bool{false, true} {
		name := "by tokens"
		dir := skep.TailFirst
		if byLayer {
			name, dir = "by layers", skep.LayersDown
		}
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s := openSlow(t, 4<<20, nil)
			sc := openModel(t, s)
			keys := chainKeys(1, 128)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
			dest := device.AlignedBuffer(len(keys) * modelBlock)
			cost := &skep.Compute{Cost: skep.RecomputeCost{PerToken: 240 * time.Microsecond}} // 0.5 s; loading: 1 s
			e := &engine{keys: keys, dest: dest, perToken: cost.Cost.PerToken, byLayer: byLayer}
			if byLayer {
				e.perToken *= time.Duration(len(keys) * model.BlockTokens / model.Layers)
			}
			before := statsOf(t, s).Devices[0].BytesRead
			began := time.Now()
			ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: dir, Compute: cost,
				Dest: skep.Destination{Memory: dest, Stride: modelBlock}}}})
			require.NoError(t, err)
			e.ses = ses
			crew := storetest.NewCrew(t)
			crew.Go(func(t testing.TB) { e.run(ctx, t) })
			landed, claimed, missed := collect(ctx, t, ses)
			crew.Wait()
			t.Logf("%v: %d landed, %d claimed, in %d claims", time.Since(began), landed, claimed, len(e.claimed))
			require.NoError(t, ses.Close(ctx))
			require.Empty(t, missed)
			chunks := len(keys)
			if byLayer {
				chunks *= model.Layers
			}
			require.Equal(t, chunks, landed+claimed)
			require.Positive(t, landed)
			require.Positive(t, claimed)
			for i, k := range keys {
				require.True(t, bytes.Equal(content(k, skep.PartKV, 1, modelBlock), dest[i*modelBlock:(i+1)*modelBlock]), "bytes of block %d", i)
			}
			read := statsOf(t, s).Devices[0].BytesRead - before
			loaded := int64(landed) * modelBlock / int64(chunks/len(keys))
			require.LessOrEqual(t, read, loaded+noise, "nothing was read that was computed")
		})
	}
}

// Blocks that do not come are islands: the engine is sent to them, the rest stays.
func TestTwoPointersComputeWhatDoesNotCome(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 1<<30, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 64)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	_, err := s.Delete(ctx, sc, keys[50:])
	require.NoError(t, err)
	dest := device.AlignedBuffer(len(keys) * modelBlock)
	cost := &skep.Compute{Cost: skep.RecomputeCost{PerToken: 10 * time.Microsecond}}
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst, Compute: cost,
		Dest: skep.Destination{Memory: dest, Stride: modelBlock}}}})
	require.NoError(t, err)
	e := &engine{ses: ses, keys: keys, dest: dest, perToken: cost.Cost.PerToken}
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { e.run(ctx, t) })
	landed, claimed, missed := collect(ctx, t, ses)
	crew.Wait()
	// What became a miss after the engine had been told that all was on its way.
	for b := range keys {
		for _, c := range missed {
			if c.Block == b {
				e.from(ctx, t, b*model.BlockTokens)
			}
		}
	}
	require.NoError(t, ses.Close(ctx))
	require.Positive(t, landed)
	require.Equal(t, len(keys), landed+claimed+len(missed))
	for i, k := range keys {
		require.True(t, bytes.Equal(content(k, skep.PartKV, 1, modelBlock), dest[i*modelBlock:(i+1)*modelBlock]), "bytes of block %d", i)
	}
}

// A load that would take longer than computing is declined and says what both would take.
func TestALoadSlowerThanComputingIsDeclined(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 0, nil) // believed to be 2 GB/s at first
	sc := openModel(t, s)
	keys := chainKeys(1, 64) // 2 MiB: about 1 ms with the latency
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	for _, tt := range []struct {
		perToken time.Duration
		declined bool
	}{{100 * time.Nanosecond, true}, {time.Millisecond, false}} {
		ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst,
			Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: tt.perToken}, LoadOnly: true}}}})
		require.NoError(t, err)
		into := make([]skep.Chunk, 1)
		_, err = ses.Next(ctx, into)
		require.NoError(t, err)
		if tt.declined {
			requireKind(t, skep.Claimed, into[0].Err)
			var e *skep.Error
			require.ErrorAs(t, into[0].Err, &e)
			require.Equal(t, "load", e.Field)
			require.Greater(t, e.Value.(time.Duration), e.Limit.(time.Duration))
			c, err := ses.Claim(ctx, 0, skep.Only(0, 100), skep.Idle)
			require.NoError(t, err)
			require.Equal(t, skep.Claim{Granted: skep.Range{From: 0, To: 100}, Next: 100}, c)
			all := skep.Range{From: 0, To: len(keys) * model.BlockTokens}
			require.NoError(t, ses.Computed(ctx, 0, all, time.Duration(all.Len())*tt.perToken, 0))
			two := s.restores.TwoPointers()
			declined, judged, right := two.Declined, two.Judged, two.Right
			require.Equal(t, []int64{1, 1, 1}, []int64{declined, judged, right}, "and it was right")
		} else {
			require.NoError(t, into[0].Err)
		}
		into[0].Release()
		require.NoError(t, ses.Close(ctx))
	}
}

// Once Stop has returned nil, nothing is written to the destination any more: it is filled with
// something else and used at once, while the drive has much of what was asked of it before still to do.
func TestStopFreesTheDestination(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s := openSlow(t, 16<<20, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 256) // 8 MiB: 500 ms
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	dest := device.AlignedBuffer(len(keys) * modelBlock)
	for round := range 4 {
		for _, compute := range []*skep.Compute{nil, {Cost: skep.RecomputeCost{PerToken: 50 * time.Microsecond}}} {
			ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst, Compute: compute,
				Dest: skep.Destination{Memory: dest, Stride: modelBlock}}}})
			require.NoError(t, err)
			into := make([]skep.Chunk, 4)
			_, err = ses.Next(ctx, into)
			require.NoError(t, err)
			stop, cancel := context.WithTimeout(ctx, 10*time.Second) // the deadline of the contract
			require.NoError(t, ses.Stop(stop, 0))
			cancel()
			poison := byte(round + 1)
			for i := range dest {
				dest[i] = poison
			}
			requireChain(t, s, sc, keys[:4], modelBlock) // asked for later, and read
			for i := range dest {
				if dest[i] != poison {
					t.Fatalf("byte %d was written after Stop had returned", i)
				}
			}
			require.NoError(t, ses.Close(ctx))
		}
	}
}

// A prefetch gets what nobody else wants, until it is promoted.
func TestPrefetchInTheBackground(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 32<<20, nil)
	sc := openModel(t, s)
	ahead, now := chainKeys(1, 128), chainKeys(2, 128)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, ahead, modelBlock))
	requireOutcome(t, skep.Committed, putRun(t, s, sc, now, modelBlock))
	slow := skep.RecomputeCost{PerToken: time.Second}
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{
		{Scope: sc, Keys: ahead, Direction: skep.TailFirst, Compute: &skep.Compute{Cost: slow, LoadOnly: true, Background: true}, Priority: -1},
		{Scope: sc, Keys: now, Direction: skep.TailFirst, Compute: &skep.Compute{Cost: slow, LoadOnly: true}},
	}})
	require.NoError(t, err)
	defer ses.Close(ctx)
	into := make([]skep.Chunk, 1)
	var landed [2]int
	for landed[1] < len(now) {
		_, err := ses.Next(ctx, into)
		require.NoError(t, err)
		require.NoError(t, into[0].Err)
		landed[into[0].Chain]++
		into[0].Release()
	}
	require.LessOrEqual(t, landed[0], 80, "what was wanted came first, but for what was on its way")
	require.NoError(t, ses.Reprioritise(ctx, 0, 0, time.Time{}))
	for landed[0] < len(ahead) {
		_, err := ses.Next(ctx, into)
		require.NoError(t, err)
		landed[into[0].Chain]++
		into[0].Release()
	}
}

func TestComputeIsChecked(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 0, nil)
	sc := openModel(t, s)
	good := skep.RecomputeCost{PerToken: time.Microsecond}
	for _, c := range []skep.Chain{
		{Compute: &skep.Compute{}},
		{Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: -1}}},
		{Compute: &skep.Compute{Cost: good, Suffix: -1}},
		{Compute: &skep.Compute{Cost: good, Weight: -1}},
		{Compute: &skep.Compute{Cost: good}, Direction: skep.HeadFirst},
	} {
		if c.Direction == 0 && c.Compute.Cost != good {
			c.Direction = skep.TailFirst
		}
		c.Scope, c.Keys = sc, chainKeys(1, 2)
		_, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
		requireKind(t, skep.Invalid, err)
	}
}
