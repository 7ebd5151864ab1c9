package gputest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// testPromptFailures: whatever fails while a prompt is computed, its engine's streams are not held up, and hear of it by
// Commit: what is believed is right.
func testPromptFailures(t *testing.T, open Open, behind func() skep.Store) {
	var usable atomic.Bool
	for _, tt := range []struct {
		name  string
		fail  func(f Faults, s *gpu.Store, lent gpu.Memory, round int)
		want  skep.Kind // of Commit; 0: all is well
		fresh int       // blocks that are computed
		times int
	}{
		{"own device gone", func(f Faults, _ *gpu.Store, _ gpu.Memory, _ int) { f.Fail(0) }, skep.DeviceFailed, 5, 1},
		{"lender gone", func(f Faults, _ *gpu.Store, _ gpu.Memory, _ int) { f.Fail(1) }, skep.DeviceFailed, 5, 1},
		{"lent memory revoked in mid-copy", func(f Faults, _ *gpu.Store, lent gpu.Memory, round int) { f.Revoke(lent, round) }, skep.DeviceFailed, 5, 8},
		{"a bit flips", func(f Faults, _ *gpu.Store, _ gpu.Memory, _ int) { f.Flip(0) }, 0, 0, 4},
		{"the lease runs out, over blocks that are behind", func(Faults, *gpu.Store, gpu.Memory, int) { usable.Store(false) }, 0, 0, 2},
		{"the lease runs out", func(Faults, *gpu.Store, gpu.Memory, int) { usable.Store(false) }, skep.LeaseExpired, 5, 2},
		{"all of it goes back", func(_ Faults, s *gpu.Store, _ gpu.Memory, _ int) { _ = s.Reclaim(0, lentUnits-1) }, 0, 5, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for round := range tt.times {
				m := open(t, Config{Seed: uint64(round)})
				f := m.faults(t)
				lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
				usable.Store(true)
				b := behind()
				s, err := gpu.New(b, gpu.Options{Device: m.Devices[0], BlockBytes: BlockBytes, Layers: 4, Local: 3, Timeout: time.Minute,
					Lenders: []gpu.Lender{{Device: m.Devices[1], Unit: unit, Units: lentUnits, Keep: 1, Memory: lent, Usable: usable.Load}}})
				require.NoError(t, err)
				sc, _ := Chain(t, s, 9-tt.fresh)
				e := newPrompt(t, m.Devices[0], s, sc, 9, 1)
				p, err := s.Prefill(Soon(t), &gpu.PrefillRequest{Scope: sc, Keys: e.keys, History: 9 - tt.fresh})
				require.NoError(t, err)
				tt.fail(f, s, lent, round)
				require.NoError(t, p.Step(9))
				e.step(p, 9-tt.fresh, 9)
				err = e.on.Sync(Soon(t))
				res, failed := p.Commit(Soon(t))
				if tt.want != 0 {
					require.ErrorIs(t, failed, tt.want)
					require.Empty(t, res)
				} else {
					require.NoError(t, failed)
					require.NoError(t, err)
					_, wrong := e.look()
					require.Empty(t, wrong)
					require.Len(t, res, tt.fresh)
				}
				require.NoError(t, p.Close(Soon(t)))
				require.Zero(t, s.Usage().Held)
				Load(t, s, sc, e.keys[:9-tt.fresh+len(res)]) // from wherever
				err = s.Close()
				require.True(t, err == nil || tt.want == skep.DeviceFailed, "%v", err)
				if m.Pinned != nil {
					require.Zero(t, m.Pinned())
				}
				if tt.want != skep.DeviceFailed {
					e.close()
					require.NoError(t, lent.Free())
				}
				for _, d := range m.Devices {
					_ = d.Close()
				}
			}
		})
	}
}

// testPromptEnds: a prompt that is given up half-way goes when the engine's streams are through with it, and not before.
func testPromptEnds(t *testing.T, open Open, behind func() skep.Store) {
	m := open(t, Config{Seed: 3})
	lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
	s := lentHalf(t, m, behind(), lent, gpu.Options{UncopiedBytes: 5 * BlockBytes})
	sc, _ := Chain(t, s, 4)
	e := newPrompt(t, m.Devices[0], s, sc, 9, 1)
	ask := gpu.PrefillRequest{Scope: sc, Keys: e.keys, History: 2}
	_, err := s.Prefill(Soon(t), &ask)
	require.ErrorIs(t, err, skep.NoMemory, "six of seven blocks would be in lent memory alone")
	require.Zero(t, s.Usage().Held)
	ask.History = 4
	p, err := s.Prefill(Soon(t), &ask)
	require.NoError(t, err)
	require.LessOrEqual(t, s.Usage().Uncopied, int64(5*BlockBytes))
	require.NoError(t, p.Step(6))
	require.ErrorIs(t, p.Step(5), skep.Invalid)
	require.ErrorIs(t, p.Step(10), skep.Invalid)
	p.Loaded(0, e.on)
	e.on.Copy(at(e.seen, 0), p.Place(0, 0), layerBytes)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Close(short), skep.NotReleased, "it may still be read")
	require.Equal(t, 9, s.Usage().Held)
	require.ErrorIs(t, p.Step(9), skep.Closed)
	p.Read(0, e.on)
	require.NoError(t, e.on.Sync(Soon(t)))
	require.NoError(t, p.Close(Soon(t)))
	_, err = p.Commit(Soon(t))
	require.ErrorIs(t, err, skep.Closed)
	require.Zero(t, s.Usage().Held)
	require.NoError(t, s.Reclaim(0, lentUnits-1))
	for name, r := range map[string]gpu.PrefillRequest{"no keys": {Scope: sc}, "history": {Scope: sc, Keys: e.keys, History: 10}} {
		_, err := s.Prefill(Soon(t), &r)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
	wrong := ask
	wrong.Scope.Namespace += 100
	_, err = s.Prefill(Soon(t), &wrong)
	require.ErrorIs(t, err, skep.Unsupported)
	e.close()
	require.NoError(t, s.Close())
	require.NoError(t, lent.Free())
	m.close(t)
}
