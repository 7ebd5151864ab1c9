package gputest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/slots"
	"github.com/skepkv/skep/layout"
)

// engine is a paged KV cache in a device's memory, for Chain's blocks: a plane of pages for each
// layer's K and V, and a stream that is held up until its gate is opened.
type engine struct {
	t      testing.TB
	pages  slots.Pages
	g      layout.Geometry
	blocks int
	memory gpu.Memory
	on     *counting
	gate   gpu.Counter
	opened uint64
	look   gpu.Stream
}

// counting is a stream that counts copies from and to host memory.
type counting struct {
	gpu.Stream
	ins, outs *atomic.Int64
}

func (c counting) CopyIn(to gpu.Place, from []byte) { c.ins.Add(1); c.Stream.CopyIn(to, from) }
func (c counting) CopyOut(to []byte, from gpu.Place) {
	c.outs.Add(1)
	c.Stream.CopyOut(to, from)
}

// countingDevice is a device whose streams count.
type countingDevice struct {
	gpu.Device
	ins, outs atomic.Int64
}

func (d *countingDevice) NewStream() (gpu.Stream, error) {
	s, err := d.Device.NewStream()
	return counting{s, &d.ins, &d.outs}, err
}

func newEngine(t testing.TB, d gpu.Device, blocks int, order skep.AxisOrder, page int) *engine {
	g, err := layout.Of(ChainShape)
	require.NoError(t, err)
	e := &engine{t: t, g: g, blocks: blocks, gate: newCounter(t, d), look: stream(t, d)}
	e.on = &counting{stream(t, d), &atomic.Int64{}, &atomic.Int64{}}
	bytes := g.SliceBytes() / int64(ChainShape.BlockTokens) * int64(page)
	e.pages = slots.Pages{Order: order, Tokens: page, Stride: bytes, Bytes: e.plane()}
	require.NoError(t, e.pages.Validate(g))
	e.memory = alloc(t, d, e.plane()*int64(2*ChainShape.Layers))
	e.clear()
	return e
}

// plane is the bytes of a layer's K or V: twice as many tokens as there are.
func (e *engine) plane() int64 { return 2 * int64(e.blocks) * e.g.SliceBytes() }

func (e *engine) clear() {
	e.look.CopyIn(at(e.memory, 0), make([]byte, e.plane()*int64(2*ChainShape.Layers)))
	require.NoError(e.t, e.look.Sync(Soon(e.t)))
}

// hold has the engine's stream wait for release.
func (e *engine) hold() {
	e.opened++
	e.on.Wait(e.gate, e.opened)
}

func (e *engine) release() {
	e.look.Signal(e.gate, e.opened)
	require.NoError(e.t, e.look.Sync(Soon(e.t)))
	require.NoError(e.t, e.on.Sync(Soon(e.t)))
}

// slots are those of a block's tokens: every other one, backwards.
func (e *engine) slots(block int) (out []int64) {
	n := ChainShape.BlockTokens
	for token := range n {
		out = append(out, int64(2*(e.blocks*n-1-block*n-token)))
	}
	return out
}

func (e *engine) runs(dst []gpu.Run, block int) ([]gpu.Run, error) {
	for l := range ChainShape.Layers {
		for v := range 2 {
			runs, err := e.pages.Runs(nil, e.g, l, v == 1, e.slots(block))
			if err != nil {
				return dst, err
			}
			for _, r := range runs {
				dst = append(dst, gpu.Run{From: r.From, To: at(e.memory, int64(2*l+v)*e.plane()+r.To), Len: r.Len})
			}
		}
	}
	return dst, nil
}

// check compares blocks [0, n) with what was put, and the rest with nothing.
func (e *engine) check(n int) {
	e.t.Helper()
	want := make([]byte, e.plane()*int64(2*ChainShape.Layers))
	got := make([]byte, len(want))
	for block := range n {
		runs, err := e.runs(nil, block)
		require.NoError(e.t, err)
		for _, r := range runs {
			copy(want[r.To.Offset:], content(block)[r.From:r.From+r.Len])
		}
	}
	e.look.CopyOut(got, at(e.memory, 0))
	require.NoError(e.t, e.look.Sync(Soon(e.t)))
	for i := range want {
		if want[i] != got[i] {
			require.FailNow(e.t, "wrong bytes", "at %d of %d: %#x, not %#x", i, len(want), got[i], want[i])
		}
	}
}

func (e *engine) close() {
	require.NoError(e.t, e.on.Close())
	require.NoError(e.t, e.look.Close())
	require.NoError(e.t, e.memory.Free())
}

// directFront is front with room for as many blocks on their way to an engine.
func directFront(m Machine, own gpu.Device, behind skep.Store, lent gpu.Memory, blocks int64) (*gpu.Store, error) {
	o := gpu.Options{Device: own, Local: 3, BlockBytes: BlockBytes, Timeout: time.Minute, DirectBytes: blocks * BlockBytes,
		Lenders: []gpu.Lender{{Device: m.Devices[1], Unit: unit, Units: lentUnits, Keep: 1, Memory: lent}}}
	if _, ok := own.(gpu.Pinner); ok {
		o.PinnedBytes = pinnedBytes
	}
	return gpu.New(behind, o)
}

// testDirect: blocks in GPU memory get into an engine's slots from device to device, those behind from pinned
// memory, behind what the engine's stream has to do; and a lender never waits for that.
func testDirect(t *testing.T, open Open, behind func() skep.Store) {
	for _, layout := range []struct {
		name  string
		order skep.AxisOrder
		page  int
	}{{"HND", skep.HND, 2 * ChainShape.BlockTokens}, {"NHD", skep.NHD, 4}} {
		t.Run(layout.name, func(t *testing.T) {
			m := open(t, Config{Seed: 23})
			lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
			own := &countingDevice{Device: m.Devices[0]}
			b := behind()
			s, err := directFront(m, own, b, lent, 11)
			require.NoError(t, err)
			sc, keys := Chain(t, s, 11)
			e := newEngine(t, m.Devices[0], 11, layout.order, layout.page)
			restore := func(n int, unchecked bool) {
				t.Helper()
				own.ins.Store(0)
				own.outs.Store(0)
				e.on.ins.Store(0)
				got, err := s.RestoreTo(Soon(t), &gpu.Direct{Scope: sc, Keys: keys, On: e.on, Runs: e.runs, Unchecked: unchecked})
				require.NoError(t, err)
				require.Equal(t, n, got)
			}
			e.hold()
			restore(11, false)
			require.Positive(t, e.on.ins.Load(), "from behind")
			e.check(0)
			e.release()
			e.check(11)

			e.clear()
			e.hold()
			restore(11, true)
			require.Zero(t, e.on.ins.Load()+own.ins.Load()+own.outs.Load(), "all from device to device")
			e.check(0)
			require.NoError(t, s.Reclaim(0, lentUnits-1), "while the engine's stream is held up")
			theirs := stream(t, m.Devices[1])
			theirs.CopyIn(at(lent, 0), pattern(lentUnits*int(unit.Bytes), 77))
			require.NoError(t, theirs.Sync(Soon(t)))
			e.release()
			e.check(11)

			e.clear()
			require.NoError(t, s.Reclaim(0, 1-lentUnits))
			Load(t, s, sc, keys)
			restore(11, false)
			require.Zero(t, e.on.ins.Load()+own.ins.Load())
			require.EqualValues(t, 11, own.outs.Load(), "each is compared")
			e.release()
			e.check(11)

			e.clear()
			_, err = b.Delete(Soon(t), sc, keys[9:])
			require.NoError(t, err)
			restore(9, false)
			e.release()
			e.check(9)

			e.clear()
			_, err = s.Delete(Soon(t), sc, keys[7:])
			require.NoError(t, err)
			restore(7, false)
			e.release()
			e.check(7)
			e.close()
			require.NoError(t, s.Close())
			m.close(t)
		})
	}
}

// testDirectLimits: what is on its way is bounded, and comes back; mistakes are errors.
func testDirectLimits(t *testing.T, open Open, behind func() skep.Store) {
	m := open(t, Config{Seed: 29})
	lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
	s, err := directFront(m, m.Devices[0], behind(), lent, 2)
	require.NoError(t, err)
	sc, keys := Chain(t, s, 11)
	Load(t, s, sc, keys)
	e := newEngine(t, m.Devices[0], 11, skep.HND, 16)
	d := gpu.Direct{Scope: sc, Keys: keys, On: e.on, Runs: e.runs, Unchecked: true}
	e.hold()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	n, err := s.RestoreTo(ctx, &d)
	require.ErrorIs(t, err, skep.Deadline)
	require.LessOrEqual(t, n, 2, "room for two")
	e.release()
	e.check(n)
	n, err = s.RestoreTo(Soon(t), &d) // room again, as the stream goes on
	require.NoError(t, err)
	require.Equal(t, 11, n)
	e.release()
	e.check(11)

	for name, change := range map[string]func(*gpu.Direct){
		"no stream": func(d *gpu.Direct) { d.On = nil }, "no runs": func(d *gpu.Direct) { d.Runs = nil },
		"blocks": func(d *gpu.Direct) { d.Blocks = skep.Only(3, 12) },
		"run": func(d *gpu.Direct) {
			d.Runs = func([]gpu.Run, int) ([]gpu.Run, error) {
				return []gpu.Run{{From: 1, To: at(e.memory, 0), Len: BlockBytes}}, nil
			}
		},
	} {
		wrong := d
		change(&wrong)
		_, err := s.RestoreTo(Soon(t), &wrong)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
	wrong := d
	wrong.Scope.Namespace += 100
	_, err = s.RestoreTo(Soon(t), &wrong)
	require.ErrorIs(t, err, skep.Unsupported)
	e.release()
	e.check(11)
	e.close()
	require.NoError(t, s.Close())
	m.close(t)
}

// testDirectFailures: a bit that flips, memory that is taken away, a device that fails: right bytes, or an error.
func testDirectFailures(t *testing.T, open Open, behind func() skep.Store) {
	for _, tt := range []struct {
		name  string
		fail  func(f Faults, lent gpu.Memory, round int)
		ends  bool
		later bool // in the middle of blocks that come from behind
	}{
		{"a bit flips", func(f Faults, _ gpu.Memory, _ int) { f.Flip(0) }, false, false},
		{"lent memory revoked in mid-copy", func(f Faults, lent gpu.Memory, round int) { f.Revoke(lent, round) }, true, false},
		{"own device gone", func(f Faults, _ gpu.Memory, _ int) { f.Fail(0) }, true, false},
		{"own device gone in mid-copy", func(f Faults, _ gpu.Memory, _ int) { f.Fail(0) }, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for round := range 4 {
				m := open(t, Config{Seed: uint64(round)})
				f := m.faults(t)
				lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
				s, err := directFront(m, m.Devices[0], behind(), lent, 4)
				require.NoError(t, err)
				sc, keys := Chain(t, s, 11)
				e := newEngine(t, m.Devices[0], 11, skep.HND, 16)
				d := &gpu.Direct{Scope: sc, Keys: keys, On: e.on, Runs: e.runs}
				if !tt.later {
					Load(t, s, sc, keys)
					tt.fail(f, lent, round)
				} else {
					queued := 0
					d.Runs = func(dst []gpu.Run, block int) ([]gpu.Run, error) {
						if queued++; queued == 3+2*round {
							tt.fail(f, lent, round)
						}
						return e.runs(dst, block)
					}
				}
				n, err := s.RestoreTo(Soon(t), d)
				if tt.ends {
					require.ErrorIs(t, err, skep.DeviceFailed)
					Load(t, s, sc, keys) // from behind
				} else {
					require.NoError(t, err)
					require.Equal(t, 11, n)
					e.release()
					e.check(11)
				}
				require.NoError(t, s.Close())
				if m.Pinned != nil {
					require.Zero(t, m.Pinned())
				}
				if !tt.ends {
					e.close()
				}
				m.close(t)
			}
		})
	}
}
