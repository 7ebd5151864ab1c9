//go:build iouring && linux

package device

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkReadsWhileMemoryIsRegistered reads 4 KiB at a time while 1 GiB is registered and given back again and again.
func BenchmarkReadsWhileMemoryIsRegistered(b *testing.B) {
	d, err := Create(b.TempDir()+"/dev", 8<<20, Options{Backend: IOUring})
	if errors.Is(err, ErrUnavailable) {
		b.Skip(err)
	}
	require.NoError(b, err)
	defer d.Close()
	mem, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(b, err)
	defer unix.Munmap(mem)
	if err := RegisterArena(d, mem); errors.Is(err, unix.ENOMEM) {
		b.Skip(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	rounds := 0
	go func() {
		defer close(done)
		for {
			UnregisterArena(d, mem)
			select {
			case <-stop:
				return
			default:
			}
			if RegisterArena(d, mem) != nil {
				return
			}
			rounds++
		}
	}()
	page := AlignedBuffer(Align)
	took := make([]time.Duration, 0, b.N)
	for b.Loop() {
		began := time.Now()
		require.NoError(b, ReadAt(b.Context(), d, page, 0))
		took = append(took, time.Since(began))
	}
	close(stop)
	<-done
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(float64(len(took)-1)*q)].Microseconds()) }
	b.ReportMetric(at(0.5), "µs-p50")
	b.ReportMetric(at(0.99), "µs-p99")
	b.ReportMetric(at(1), "µs-max")
	b.ReportMetric(float64(rounds), "registrations")
}
