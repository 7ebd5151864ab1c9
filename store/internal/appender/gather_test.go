package appender

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
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
