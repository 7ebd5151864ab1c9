//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
)

// What copies cost on a GPU: of pinned host memory, the link's limit, beside memory that is
// not pinned; within the device, beside memory that was imported from a file descriptor; and
// blocks one by one beside a batch.
func BenchmarkCopies(b *testing.B) {
	if simulated() {
		b.Skip("the fake driver's time says nothing")
	}
	const size, block = 64 << 20, 32 << 10
	m := machine(b, gputest.Config{})
	d := m.Devices[0].(*device)
	mem, err := d.Alloc(size)
	require.NoError(b, err)
	other, f, err := d.AllocShared(size)
	require.NoError(b, err)
	lent, err := d.Import(f, size)
	require.NoError(b, err)
	pinned, err := d.AllocHost(size)
	require.NoError(b, err)
	g, err := d.NewStream()
	require.NoError(b, err)
	s, pageable := g.(*stream), make([]byte, size)
	place := func(m gpu.Memory) gpu.Place { return gpu.Place{Memory: m} }
	var batch []gpu.Transfer
	for off := int64(0); off < size; off += 2 * block {
		batch = append(batch, gpu.Transfer{To: gpu.Place{Memory: mem, Offset: off}, From: gpu.Place{Memory: lent, Offset: off}, N: block})
	}
	for _, c := range []struct {
		name  string
		bytes int64
		queue func()
	}{
		{"in/pinned", size, func() { s.CopyIn(place(mem), pinned) }},
		{"in/pageable", size, func() { s.CopyIn(place(mem), pageable) }},
		{"out/pinned", size, func() { s.CopyOut(pinned, place(mem)) }},
		{"out/pageable", size, func() { s.CopyOut(pageable, place(mem)) }},
		{"device/plain", size, func() { s.Copy(place(mem), place(other), size) }},
		{"device/imported", size, func() { s.Copy(place(mem), place(lent), size) }},
		{"blocks/one-by-one", size / 2, func() {
			for _, t := range batch {
				s.Copy(t.To, t.From, t.N)
			}
		}},
		{"blocks/batch", size / 2, func() { s.CopyAll(batch) }},
		{"nothing", 0, func() {}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(c.bytes)
			for b.Loop() {
				c.queue()
				require.NoError(b, s.Sync(context.Background()))
			}
		})
	}
	require.NoError(b, f.Close())
	for _, d := range m.Devices {
		require.NoError(b, d.Close())
	}
}
