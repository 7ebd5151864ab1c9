package appender

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// A drive that takes no operations at all has none of the store's memory.
func TestRefusedWritesGiveMemoryBack(t *testing.T) {
	t.Parallel()
	arena, err := memory.New(memory.Options{IO: 16 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, arena.Close(t.Context())) }()
	dev := device.NewMemory(1 << 20)
	require.NoError(t, dev.Close())
	d := &space.Drive{Dev: dev}
	var ops []driveOp
	for i := range 3 {
		b, err := arena.Alloc(t.Context(), 4<<10, memory.BudgetIO)
		require.NoError(t, err)
		ops = append(ops, driveOp{drive: d, temp: []*memory.Buffer{b},
			op: &device.Op{Kind: device.Write, Bufs: [][]byte{b.Bytes()}, Offset: int64(i) * 4 << 10}})
	}
	w := segio.NewBatch(len(ops))
	submitAll(w, ops)
	require.Equal(t, skep.DeviceFailed, skep.KindOf(w.Wait(t.Context(), time.Minute)))
	require.Zero(t, arena.Stats().IOUsed)
}

// Writes that lie back to back on a drive are one, with what each holds in memory; others stay as they are.
func TestWritesThatLieBackToBackAreOne(t *testing.T) {
	t.Parallel()
	const page, most = layout.PageSize, mostMerged / layout.PageSize
	a, b := &space.Drive{}, &space.Drive{}
	at := func(d *space.Drive, page0, pages int) driveOp {
		return driveOp{drive: d, temp: make([]*memory.Buffer, 1),
			op: &device.Op{Kind: device.Write, Bufs: [][]byte{make([]byte, pages*page)}, Offset: int64(page0) * page}}
	}
	for _, tt := range []struct {
		name string
		ops  []driveOp
		want [][3]int // first page, pages, buffers
	}{
		{"none", nil, [][3]int{}},
		{"one", []driveOp{at(a, 7, 2)}, [][3]int{{7, 2, 1}}},
		{"two drives in turns", []driveOp{at(a, 0, 2), at(b, 0, 2), at(a, 2, 1), at(b, 2, 3), at(a, 3, 1)},
			[][3]int{{0, 4, 3}, {0, 5, 2}}},
		{"a gap", []driveOp{at(a, 0, 2), at(a, 3, 2), at(a, 5, 1)}, [][3]int{{0, 2, 1}, {3, 3, 2}}},
		{"backwards", []driveOp{at(a, 2, 2), at(a, 0, 2)}, [][3]int{{2, 2, 1}, {0, 2, 1}}},
		{"as much as may be, and one page more", []driveOp{at(a, 0, most-1), at(a, most-1, 1), at(a, most, 1)},
			[][3]int{{0, most, 2}, {most, 1, 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := [][3]int{}
			for _, o := range merged(tt.ops) {
				require.Len(t, o.temp, len(o.op.Bufs))
				got = append(got, [3]int{int(o.op.Offset / page), o.op.Len() / page, len(o.op.Bufs)})
			}
			require.Equal(t, tt.want, got)
		})
	}
}
